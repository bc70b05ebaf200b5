//! Processes that cannot be attached to: each is told why and what to do, and runs on as before.

mod attach_target;
mod support;

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use attach_target::{Target, command, fails, succeeds};
use support::{Folder, Run, compile, library};

/// A child that is killed at the end of the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Killed {
    fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Self(child.unwrap_or_else(|why| panic!("{command:?}: {why}")))
    }

    fn sleep() -> Self {
        let sleep = Self::start(Command::new("sleep").arg("1000"));
        sleep.await_state('S');
        sleep
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn state(&self) -> Option<char> {
        state(self.pid())
    }

    /// Waits until ps would show it in this state.
    #[track_caller]
    fn await_state(&self, wanted: char) {
        let until = Instant::now() + Duration::from_secs(60);
        while self.state() != Some(wanted) || name(self.pid()) == "attach_states" {
            assert!(Instant::now() < until, "{:?}, not {wanted}", self.state());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// That it runs as before, untraced.
    #[track_caller]
    fn expect_unharmed(&self, state: char) {
        assert_eq!(self.state(), Some(state));
        assert_eq!(field(self.pid(), "TracerPid"), "0");
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid()));
        assert!(!maps.expect("it can be read").contains("libgpupool"));
    }
}

fn stat(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default()
}

fn state(pid: u32) -> Option<char> {
    stat(pid).rsplit_once(") ")?.1.chars().next()
}

fn name(pid: u32) -> String {
    let stat = stat(pid);
    let name = stat
        .split_once('(')
        .and_then(|(_, rest)| rest.rsplit_once(')'));
    name.map(|(name, _)| name.to_owned()).unwrap_or_default()
}

fn field(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or("").trim().to_owned()
}

fn is_root() -> bool {
    // SAFETY: no arguments, no failure.
    unsafe { libc::geteuid() == 0 }
}

/// A user that exists nowhere.
const NOBODY: u32 = 54_321;

/// Runs `gpupool attach` as another user, on copies that this user can read.
fn attach_as(user: u32, folder: &Folder, pid: u32) -> (i32, String) {
    let copy = |from: std::path::PathBuf, name: &str| {
        let to = folder.path().join(name);
        std::fs::copy(&from, &to).unwrap_or_else(|why| panic!("{from:?}: {why}"));
        to
    };
    let (gpupool, library) = (copy(command(), "gpupool"), copy(library(), "libgpupool.so"));
    let output = Command::new(gpupool)
        .args(["attach", &pid.to_string()])
        .env("GPUPOOL_LIB", library)
        .uid(user)
        .gid(user)
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap_or(-1), text)
}

#[test]
fn no_such_process() {
    let ended = {
        let child = Killed::sleep();
        child.pid()
    };
    let said = fails(&["attach"], ended);
    assert!(said.contains("there is no process"), "{said}");
    assert!(fails(&["detach"], ended).contains("there is no process"));
    assert!(fails(&["attach"], 0).contains("no process id"));
    let outcome = attach_target::gpupool(&["attach", "name"]).run();
    assert_eq!(outcome.code(), 2, "{outcome:#?}");
    assert!(outcome.stderr.contains("name"), "{outcome:#?}");
}

#[test]
fn a_thread_is_not_a_process() {
    let mut target = Target::start("shared", &["churn"]);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", target.pid())).expect("it runs");
    let thread = tasks
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .find(|tid| *tid != target.pid())
        .expect("it has threads");
    let said = fails(&["attach"], thread);
    assert!(
        said.contains(&format!("a thread of process {}", target.pid()))
            || said.contains("no process"),
        "{said}"
    );
    target.expect_progress();
    target.end();
}

#[test]
fn a_zombie_has_ended() {
    let child = Killed::start(&mut Command::new("true"));
    let until = Instant::now() + Duration::from_secs(60);
    while child.state() != Some('Z') {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(2));
    }
    let said = fails(&["attach"], child.pid());
    assert!(
        said.contains("has ended") && said.contains("zombie"),
        "{said}"
    );
}

#[test]
fn a_stopped_process_is_to_be_continued_first() {
    let child = Killed::sleep();
    let signal = |signal| {
        // SAFETY: the child has not been waited for.
        assert_eq!(unsafe { libc::kill(child.pid() as i32, signal) }, 0);
    };
    signal(libc::SIGSTOP);
    child.await_state('T');
    let said = fails(&["attach"], child.pid());
    assert!(said.contains("kill -CONT"), "{said}");
    child.expect_unharmed('T');
    signal(libc::SIGCONT);
    child.await_state('S');
    succeeds(&["attach"], child.pid());
    assert_eq!(child.state(), Some('S'));
}

#[test]
fn a_traced_process_has_its_tracer_named() {
    let child = Killed::sleep();
    let pid = child.pid() as i32;
    // SAFETY: takes integers only; seizing does not stop the child.
    let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0_usize, 0_usize) };
    assert_eq!(seized, 0);
    // SAFETY: no arguments, no failure.
    let own = unsafe { libc::syscall(libc::SYS_gettid) };
    let said = fails(&["attach"], child.pid());
    assert!(said.contains(&format!("traced by process {own}")), "{said}");
    assert_eq!(child.state(), Some('S'));
}

#[test]
fn a_process_of_another_user_is_that_users_or_roots() {
    if !is_root() {
        println!("SKIP: takes root to have two users");
        return;
    }
    let folder = Folder::new("attach-users");
    let child = Killed::start(Command::new("sleep").arg("1000").uid(NOBODY + 1));
    child.await_state('S');
    let (code, said) = attach_as(NOBODY, &folder, child.pid());
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("no right to trace"), "{said}");
    assert!(said.contains(&format!("user {}", NOBODY + 1)), "{said}");
    child.expect_unharmed('S');
    // Root may, and so may the user itself.
    succeeds(&["attach"], child.pid());
    let own = Killed::start(Command::new("sleep").arg("1000").uid(NOBODY).gid(NOBODY));
    own.await_state('S');
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    if scope.is_err() || scope.is_ok_and(|scope| scope.trim() == "0") {
        let (code, said) = attach_as(NOBODY, &folder, own.pid());
        assert_eq!(code, 0, "{said}");
    }
}

#[test]
fn a_process_that_must_not_be_dumped_is_roots() {
    if !is_root() {
        println!("SKIP: takes root to have two users");
        return;
    }
    let folder = Folder::new("attach-dumpable");
    let source = "
        #include <stdio.h>
        #include <sys/prctl.h>
        #include <unistd.h>
        int main(void) {
            prctl(PR_SET_DUMPABLE, 0);
            puts(\"ready\"); fflush(stdout);
            for (;;) pause();
        }";
    let program = compile(&folder, "cc", "undumpable", source, &[]);
    let mut command = Command::new(program);
    command.uid(NOBODY).gid(NOBODY);
    let target = Target::of(command);
    let (code, said) = attach_as(NOBODY, &folder, target.pid());
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("dumped") && said.contains("as root"),
        "{said}"
    );
    succeeds(&["attach"], target.pid());
}

#[test]
fn a_statically_linked_program_cannot_load_it() {
    let folder = Folder::new("attach-static");
    let source = "
        #include <stdio.h>
        #include <unistd.h>
        int main(void) { puts(\"ready\"); fflush(stdout); for (;;) pause(); }";
    if Run::new("cc")
        .arg("-print-file-name=libc.a")
        .run()
        .stdout
        .trim()
        == "libc.a"
    {
        println!("SKIP: no static libc here");
        return;
    }
    let program = compile(&folder, "cc", "alone", source, &["-static"]);
    let target = Target::of(Command::new(program));
    let said = fails(&["attach"], target.pid());
    assert!(said.contains("statically linked"), "{said}");
}

/// A 32-bit program that waits for ever: an ELF header, one segment, and `pause` in a loop.
const PROGRAM_32: &[u8] = &[
    0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, // 32 bits, little-endian
    2, 0, 3, 0, 1, 0, 0, 0, 0x54, 0x80, 0x04, 0x08, // executable, i386, entry
    52, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 52, 0, 32, 0, 1, 0, 0, 0, 0, 0, 0, 0, // one segment
    1, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x04, 0x08, 0, 0x80, 0x04, 0x08, // loaded at 0x8048000
    0x5d, 0, 0, 0, 0x5d, 0, 0, 0, 5, 0, 0, 0, 0, 0x10, 0, 0, // readable, executable
    0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7, // mov eax, 29; int 0x80; jmp
];

#[test]
fn a_32_bit_program_is_told_so() {
    let folder = Folder::new("attach-32");
    let path = folder.path().join("small");
    std::fs::write(&path, PROGRAM_32).expect("it can be written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, mode).expect("it is ours");
    let started = Command::new(&path).stdin(Stdio::null()).spawn();
    let Ok(child) = started.map(Killed) else {
        println!("SKIP: this kernel runs no 32-bit programs");
        return;
    };
    child.await_state('S');
    let said = fails(&["attach"], child.pid());
    assert!(said.contains("32-bit"), "{said}");
    child.expect_unharmed('S');
}

/// A program with a seccomp filter that answers one system call so, and lets all others through.
fn filtered(folder: &Folder, name: &str, call: &str, answer: &str) -> Target {
    let source = format!(
        "
        #include <linux/filter.h>
        #include <linux/seccomp.h>
        #include <stddef.h>
        #include <stdio.h>
        #include <sys/prctl.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        int main(void) {{
            struct sock_filter code[] = {{
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, {call}, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, {answer}),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
            }};
            struct sock_fprog program = {{sizeof code / sizeof *code, code}};
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 9;
            char line[64];
            puts(\"ready\"); fflush(stdout);
            while (fgets(line, sizeof line, stdin)) {{ puts(\"here\"); fflush(stdout); }}
        }}"
    );
    let program = compile(folder, "cc", name, &source, &[]);
    Target::of(Command::new(program))
}

#[test]
fn a_filter_that_forbids_what_is_needed_is_found_without_trying() {
    if !is_root() {
        println!("SKIP: takes root to read a filter");
        return;
    }
    let folder = Folder::new("attach-seccomp");
    let mut target = filtered(&folder, "killing", "SYS_ppoll", "SECCOMP_RET_KILL_PROCESS");
    let said = fails(&["attach"], target.pid());
    assert!(said.contains("seccomp filter that forbids ppoll"), "{said}");
    assert_eq!(target.ask("still"), "here");

    // Without files in memory it is loaded from a folder, where nothing stays.
    let refuse = "SECCOMP_RET_ERRNO | 38";
    let mut target = filtered(&folder, "refusing", "SYS_memfd_create", refuse);
    let text = succeeds(&["attach"], target.pid());
    assert!(text.contains("no CUDA yet"), "{text}");
    assert_eq!(target.ask("still"), "here");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid())).expect("it runs");
    let line = maps
        .lines()
        .find(|line| line.contains("libgpupool-"))
        .expect("it is loaded");
    assert!(line.ends_with(" (deleted)"), "{line}");
}

#[test]
fn a_loader_that_is_busy_is_left_alone() {
    let folder = Folder::new("attach-loader");
    let library = "
        #include <stdio.h>
        #include <unistd.h>
        __attribute__((constructor)) static void slow(void) {
            puts(\"ready\"); fflush(stdout);
            while (access(\"go\", F_OK)) usleep(10000);
        }";
    let slow = compile(&folder, "cc", "slow.so", library, &["-shared", "-fPIC"]);
    let source = format!(
        "
        #include <dlfcn.h>
        #include <pthread.h>
        #include <stdio.h>
        #include <unistd.h>
        static void *load(void *unused) {{ return dlopen(\"{}\", RTLD_NOW); }}
        int main(void) {{
            pthread_t t;
            void *result = 0;
            pthread_create(&t, 0, load, 0);
            char line[64];
            while (fgets(line, sizeof line, stdin) && *line != 'q') {{ puts(\"here\"); fflush(stdout); }}
            pthread_join(t, &result);
            puts(result ? \"end wrong 0\" : \"not loaded\");
        }}",
        slow.display()
    );
    let program = compile(&folder, "cc", "busy", &source, &["-pthread"]);
    let mut command = Command::new(program);
    command.current_dir(folder.path());
    let mut target = Target::of(command);
    let said = fails(&["attach", "--limit", "1"], target.pid());
    assert!(said.contains("inside the loader"), "{said}");
    assert_eq!(target.ask("still"), "here");
    std::fs::write(folder.path().join("go"), "").expect("it can be written");
    let mut attached = String::new();
    for _ in 0..100 {
        let outcome = attach_target::gpupool(&["attach", &target.pid().to_string()]).run();
        attached = outcome.stdout;
        if !attached.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(attached.contains("no CUDA yet"), "{attached}");
    assert_eq!(target.ask("still"), "here");
    target.end();
}

#[test]
fn a_process_in_a_container_has_another_number_there() {
    let unshare = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    if !is_root() || Run::new("unshare").args(unshare).arg("true").run().code() != 0 {
        println!("SKIP: no process-id namespaces here");
        return;
    }
    let highest = std::fs::read_to_string("/proc/sys/kernel/pid_max").expect("/proc is mounted");
    let inside: u32 = highest.trim().parse::<u32>().expect("a number") - 3;
    let script = format!(
        "echo {} > /proc/sys/kernel/ns_last_pid; sleep 1000 & echo ready $!; wait",
        inside - 1
    );
    let mut command = Command::new("unshare");
    command.args(unshare).args(["sh", "-c", &script]);
    let _container = Target::of(command);
    let outside = std::fs::read_dir("/proc")
        .expect("/proc is mounted")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .find(|pid| field(*pid, "NSpid").ends_with(&format!("\t{inside}")) && *pid != inside)
        .expect("it is seen from here");
    if state(inside).is_none() {
        let said = fails(&["attach"], inside);
        assert!(said.contains("inside a container"), "{said}");
        assert!(said.contains(&outside.to_string()), "{said}");
    }
    // By the number that counts here it can be attached to, with its own /proc.
    let text = succeeds(&["attach"], outside);
    assert!(text.contains("no CUDA yet"), "{text}");
    assert_eq!(state(outside), Some('S'));
}

#[test]
fn there_is_nothing_to_detach() {
    let child = Killed::sleep();
    let said = fails(&["detach"], child.pid());
    assert!(said.contains("not loaded"), "{said}");
    child.expect_unharmed('S');
}

#[test]
fn a_library_of_another_kind_is_refused_before_anything_is_touched() {
    let folder = Folder::new("attach-library");
    let other = folder.path().join("libother.so");
    std::fs::write(&other, "no library").expect("it can be written");
    let child = Killed::sleep();
    let outcome = Run::new(command())
        .args(["attach", &child.pid().to_string()])
        .env("GPUPOOL_LIB", &other)
        .run();
    assert_eq!(outcome.code(), 1, "{outcome:#?}");
    assert!(outcome.stderr.contains("libother.so"), "{outcome:#?}");
    child.expect_unharmed('S');
}

#[test]
fn one_command_at_a_time() {
    let child = Killed::sleep();
    let folder = std::fs::File::open(format!("/proc/{}", child.pid())).expect("it runs");
    // SAFETY: the descriptor is open.
    let locked = unsafe {
        libc::flock(
            std::os::fd::AsRawFd::as_raw_fd(&folder),
            libc::LOCK_EX | libc::LOCK_NB,
        )
    };
    assert_eq!(locked, 0);
    assert!(fails(&["attach"], child.pid()).contains("another gpupool command"));
    child.expect_unharmed('S');
    drop(folder);
    succeeds(&["attach"], child.pid());
}
