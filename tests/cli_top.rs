//! `gpupool top` on a real terminal, which tmux gives: on the simulated driver.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests may fail loudly"
)]

#[path = "support/commanded.rs"]
mod commanded;
mod support;

use std::time::{Duration, Instant};

use commanded::{Commanded, command, figure, figures, gpupool};
use support::{Folder, Outcome, Run};

/// A tmux server of its own, ended with the test.
struct Terminal {
    folder: Folder,
}

impl Terminal {
    /// Runs a command in a terminal of 140 columns; `None` without tmux.
    fn start(name: &str, line: &str) -> Option<Self> {
        Self::start_wide(name, "140", line)
    }

    /// The same in a terminal of so many columns.
    fn start_wide(name: &str, columns: &str, line: &str) -> Option<Self> {
        if Run::new("sh").args(["-c", "command -v tmux"]).run().code() != 0 {
            println!("SKIP: no tmux");
            return None;
        }
        let terminal = Self {
            folder: Folder::new(name),
        };
        let size = ["-x", columns, "-y", "24"];
        // The window stays when the command has ended, so that its end can be seen.
        let line = format!("{line}; echo ended with $?; cat");
        terminal
            .tmux(&[
                "-f",
                "/dev/null",
                "new-session",
                "-d",
                size[0],
                size[1],
                size[2],
                size[3],
                &line,
            ])
            .expect_success();
        Some(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> Outcome {
        Run::new("tmux")
            .arg("-S")
            .arg(self.folder.path().join("socket"))
            .args(arguments)
            .env("TERM", "xterm")
            .run()
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"]).expect_success().stdout
    }

    fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]).expect_success();
    }

    /// Waits until the screen is as `reached` wants it.
    #[track_caller]
    fn until(&self, what: &str, reached: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let screen = self.screen();
            if reached(&screen) {
                return screen;
            }
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{what}:\n{screen}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

fn top(arguments: &str) -> String {
    format!("{} top --every 200ms {arguments}", command().display())
}

/// The line of a process, as words.
fn line<'a>(screen: &'a str, pid: &str) -> Option<Vec<&'a str>> {
    screen
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|words| words.first() == Some(&pid))
}

#[test]
fn processes_appear_with_their_figures_and_obey_keys() {
    let mut program = Commanded::start(&[("GPUPOOL_HELPER", "on")]);
    program.tell_all(&["init", "alloc 3145728", "alloc 50000000", "free"]);
    let pid = program.pid();
    let Some(terminal) = Terminal::start("top-keys", &top(&pid)) else {
        return;
    };
    let screen = terminal.until("the process", |screen| line(screen, &pid).is_some());
    let words = line(&screen, &pid).unwrap();
    assert_eq!(&words[1..5], ["commanded", "pool", "0", "3"], "{screen}");
    assert!(
        screen.contains("RESERVED") && screen.contains("q quit"),
        "{screen}"
    );
    assert!(figure(&figures(&program), "/reserved_bytes") > 50_000_000);
    terminal.press("t");
    terminal.until("the answer", |screen| screen.contains("gave back"));
    let reserved = figure(&figures(&program), "/reserved_bytes");
    assert!(reserved < 50_000_000, "{reserved}");
    terminal.press("p");
    terminal.until("off", |screen| {
        line(screen, &pid).is_some_and(|words| words[2] == "off")
    });
    assert_eq!(figures(&program)["mode"], "off");
    terminal.press("p");
    terminal.until("on", |screen| {
        line(screen, &pid).is_some_and(|words| words[2] == "pool")
    });
    // The program goes on, and its end is seen.
    program.tell_all(&["churn 100 4096"]);
    program.end();
    terminal.until("its end", |screen| screen.contains("has ended"));
    terminal.press("q");
    terminal.until("the end", |screen| screen.contains("ended with 0"));
}

#[test]
fn several_processes_are_selected_one_after_the_other() {
    let start = || {
        let mut program = Commanded::start(&[("GPUPOOL_HELPER", "on")]);
        program.tell_all(&["init", "alloc 1048576"]);
        program
    };
    let mut programs = [start(), start()];
    programs.sort_by_key(|program| program.pid().parse::<u32>().unwrap());
    let Some(terminal) = Terminal::start("top-select", &top("")) else {
        return;
    };
    let (first, second) = (programs[0].pid(), programs[1].pid());
    terminal.until("both", |screen| {
        line(screen, &first).is_some() && line(screen, &second).is_some()
    });
    // Other tests' processes may stand between them.
    for _ in 0..50 {
        terminal.press("Down");
    }
    for _ in 0..50 {
        terminal.press("Up");
    }
    terminal.press("q");
    let screen = terminal.until("the end", |screen| screen.contains("ended with 0"));
    assert!(
        !screen.contains("LIVE"),
        "the terminal is as it was: {screen}"
    );
}

/// Where each word of a line ends.
fn ends(line: &str) -> Vec<usize> {
    let chars: Vec<char> = line.chars().chain([' ']).collect();
    let is_end = |at: usize| !chars[at].is_whitespace() && chars[at + 1].is_whitespace();
    (0..chars.len() - 1).filter(|at| is_end(*at)).collect()
}

/// On a terminal of every width the lines fit, what matters most is there, and numbers stand under
/// the ends of their columns' names.
#[test]
fn columns_fit_the_terminal_and_are_aligned() {
    let mut program = Commanded::start(&[]);
    program.tell_all(&["init", "alloc 3145728", "alloc 50000000"]);
    let pid = program.pid();
    for (columns, name, absent) in [("140", "WAITS/s", "none"), ("80", "HIT%", "DRIVER/s")] {
        let Some(terminal) = Terminal::start_wide(&format!("top-{columns}"), columns, &top(&pid))
        else {
            return;
        };
        let screen = terminal.until("the process", |screen| line(screen, &pid).is_some());
        let header = screen.lines().find(|line| line.contains("PID")).unwrap();
        assert!(
            header.contains(name) && !header.contains(absent),
            "{screen}"
        );
        for part in ["LIVE", "RESERVED", "q quit", "50.7 MiB live"] {
            assert!(screen.contains(part), "{part}: {screen}");
        }
        let most = columns.parse::<usize>().unwrap();
        assert!(
            screen.lines().all(|line| line.chars().count() <= most),
            "{screen}"
        );
        let row = screen
            .lines()
            .find(|line| line.split_whitespace().next() == Some(&pid))
            .unwrap();
        let live = header.find("LIVE").unwrap() + "LIVE".len() - 1;
        let hits = header.find("HIT%").unwrap() + "HIT%".len() - 1;
        let pid_ends = header.find("PID").unwrap() + 2;
        for end in [pid_ends, live, hits] {
            assert!(ends(row).contains(&end), "{end}: {screen}");
        }
    }
    program.end();
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let outcome = gpupool(&["top"]).run();
    assert_eq!(outcome.code(), 2);
    assert!(outcome.stderr.contains("gpupool stat --all"), "{outcome:?}");
}

#[test]
fn a_process_that_cannot_be_watched_is_told_before_the_screen_is_taken() {
    let line = top("1073741824");
    let Some(terminal) = Terminal::start("top-absent", &line) else {
        return;
    };
    let screen = terminal.until("the end", |screen| screen.contains("ended with 1"));
    assert!(screen.contains("no such process"), "{screen}");
}
