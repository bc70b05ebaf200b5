use super::*;

/// A pipe; reading needs no thread because lines are shorter than its buffer.
fn pipe() -> (libc::c_int, libc::c_int) {
    let mut ends = [0; 2];
    // SAFETY: the array has room for the two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    (ends[0], ends[1])
}

fn close(fd: libc::c_int) {
    // SAFETY: the descriptor is this test's own and is not used afterwards.
    assert_eq!(unsafe { libc::close(fd) }, 0);
}

/// What one read(2) gives: one write, as nothing else writes.
fn read_once(fd: libc::c_int) -> String {
    let mut buffer = vec![0_u8; 1 << 16];
    // SAFETY: the pointer and the length are the buffer's.
    let n = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
    buffer.truncate(usize::try_from(n).unwrap());
    String::from_utf8(buffer).unwrap()
}

fn say(logger: &Logger, level: log::Level, target: &str, message: &str) {
    logger.log(
        &Record::builder()
            .level(level)
            .target(target)
            .args(format_args!("{message}"))
            .build(),
    );
}

#[test]
fn one_line_with_the_process_id_whatever_the_message_holds() {
    let (read, write) = pipe();
    let logger = Logger::new("warn", write);
    say(&logger, log::Level::Info, "gpupool::pool", "held back");
    say(
        &logger,
        log::Level::Warn,
        "gpupool::pool",
        "first\nsecond \x1b[31m ü",
    );
    let expected = format!(
        "gpupool[{}] warn: first\\nsecond \\u{{1b}}[31m ü\n",
        std::process::id()
    );
    assert_eq!(read_once(read), expected);
    close(read);
    close(write);
}

#[test]
fn the_filter_is_env_loggers() {
    let (read, write) = pipe();
    let logger = Logger::new("off,gpupool::pool=debug", write);
    assert_eq!(logger.level(), LevelFilter::Debug);
    say(&logger, log::Level::Error, "gpupool::cuda", "other layer");
    say(&logger, log::Level::Trace, "gpupool::pool", "too fine");
    say(&logger, log::Level::Debug, "gpupool::pool::grace", "passes");
    assert!(read_once(read).ends_with("] debug: passes\n"));
    close(read);
    close(write);
}

#[test]
fn a_long_line_is_cut_to_what_a_pipe_takes_in_one_piece() {
    let (read, write) = pipe();
    let logger = Logger::new("warn", write);
    say(&logger, log::Level::Warn, "gpupool", &"ü".repeat(1 << 20));
    let line = read_once(read);
    assert!(line.len() <= LONGEST_LINE, "{} bytes", line.len());
    assert!(line.len() > LONGEST_LINE - 8, "{} bytes", line.len());
    assert!(line.ends_with("…\n"));
    close(read);
    close(write);
}

/// The Rust runtime ignores SIGPIPE in this process, so the default action,
/// death, is put back for a child: that is what a C program has.
#[test]
fn a_pipe_that_nobody_reads_kills_nothing_and_leaves_nothing_behind() {
    let (read, write) = pipe();
    let logger = Logger::new("warn", write);
    close(read);
    // SAFETY: the child makes system calls and writes a line, then leaves with
    // _exit; allocation after a fork is allowed by glibc.
    let child = unsafe { libc::fork() };
    assert_ne!(child, -1);
    if child == 0 {
        // SAFETY: all pointers are to locals; _exit does not return.
        unsafe {
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            *libc::__errno_location() = libc::ENOENT;
            say(&logger, log::Level::Warn, "gpupool", "nobody reads this");
            let kept = *libc::__errno_location() == libc::ENOENT;
            let mut pending: libc::sigset_t = std::mem::zeroed();
            libc::sigpending(&mut pending);
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
            let left = libc::sigismember(&pending, libc::SIGPIPE) == 1
                || libc::sigismember(&mask, libc::SIGPIPE) == 1;
            libc::_exit(if !kept {
                3
            } else if left {
                4
            } else {
                0
            });
        }
    }
    let mut status = 0;
    // SAFETY: the pointer is to a local.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(
        libc::WIFEXITED(status),
        "killed by signal {}",
        libc::WTERMSIG(status)
    );
    assert_eq!(
        libc::WEXITSTATUS(status),
        0,
        "3: errno changed, 4: a signal was left"
    );
    close(write);
}

#[test]
fn a_descriptor_that_was_closed_at_the_start_is_never_written() {
    // A number that is surely closed: nothing here opens a million files.
    let logger = Logger::new("trace", 1_000_000);
    assert_eq!(logger.level(), LevelFilter::Off);
    assert!(!logger.enabled(&Metadata::builder().level(log::Level::Error).build()));
    say(&logger, log::Level::Error, "gpupool", "nowhere");
}

#[test]
fn each_key_is_first_once_and_a_full_table_is_quiet() {
    let seen = [const { AtomicU64::new(0) }; 4];
    for key in ["a", "b", "c", "d"] {
        assert!(is_first_in(&seen, key));
        assert!(!is_first_in(&seen, key));
    }
    assert!(!is_first_in(&seen, "e"), "a full table takes no more");
    assert!(!is_first_in(&seen, "a"));
}

/// What [`the_process_log_as_a_whole`] runs in a process of its own: the
/// logger is one a process, and the test runner's stderr is not to be read.
#[test]
#[ignore = "a part of the_process_log_as_a_whole, which starts it"]
fn in_a_process_of_its_own() {
    let filter = std::env::var("LOGGING_TEST_FILTER").unwrap();
    crate::warn_once!("early", "before the start");
    log::error!("before the start");
    init(&filter);
    init("trace");
    log::debug!("fine");
    for round in 0..3 {
        crate::warn_once!("early", "once, round {round}");
        crate::warn_once!(&format!("key {}", round / 2), "by key, round {round}");
    }
}

#[test]
fn the_process_log_as_a_whole() {
    let lines = |filter: &str| -> Vec<String> {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "logging::tests::in_a_process_of_its_own",
                "--ignored",
            ])
            .env("LOGGING_TEST_FILTER", filter)
            .output()
            .unwrap();
        assert!(child.status.success());
        assert!(!String::from_utf8_lossy(&child.stdout).contains("gpupool["));
        let stderr = String::from_utf8(child.stderr).unwrap();
        stderr
            .lines()
            .map(|line| {
                let rest = line.strip_prefix("gpupool[").unwrap();
                rest.split_once("] ").unwrap().1.to_owned()
            })
            .collect()
    };
    let warnings = [
        "warn: once, round 0",
        "warn: by key, round 0",
        "warn: by key, round 2",
    ];
    assert_eq!(lines("warn"), warnings);
    assert_eq!(lines("debug")[0], "debug: fine");
    assert_eq!(lines("off"), [""; 0]);
    let fallen_back = lines("wran");
    assert_eq!(
        fallen_back[0],
        "warn: the log filter \"wran\" is not understood; \"warn\" is in force"
    );
    assert_eq!(fallen_back[1..], warnings);
}
