//! The `gpupool` command: runs programs with the library, looks at them while
//! they run, and lists its options.

mod args;
mod ask;
mod attach;
mod check;
mod docs;
mod env;
mod observe;
mod process;
mod replay;
mod report;
mod run;
mod stat;
mod top;
mod tune;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Makes GPU memory allocation nearly free for unmodified CUDA programs.
#[derive(Parser)]
#[command(name = "gpupool", version, arg_required_else_help = true)]
#[command(after_help = "Examples:
  gpupool run -- ./app --batch 8
  gpupool run --set MAX=50% --stats -- python3 serve.py
  gpupool stat --all
  gpupool env

Without this command: LD_PRELOAD=/path/to/libgpupool.so ./app")]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program with the library
    #[command(after_help = run::EXAMPLES)]
    Run(run::Args),
    /// Take the library into a process that runs already
    #[command(after_help = attach::EXAMPLES)]
    Attach(attach::AttachArgs),
    /// Leave a process's allocations to the driver again
    Detach(attach::DetachArgs),
    /// Say whether the pool will reach a program, and how
    #[command(after_help = check::EXAMPLES)]
    Check(check::Args),
    /// Run a program unchanged, and say what the pool would change
    #[command(after_help = observe::EXAMPLES)]
    Observe(observe::Args),
    /// Show the figures of running processes
    #[command(after_help = stat::EXAMPLES)]
    Stat(stat::Args),
    /// Show the figures of running processes live
    #[command(after_help = top::EXAMPLES)]
    Top(top::Args),
    /// Have a running process give unused memory back
    #[command(after_help = ask::TRIM_EXAMPLES)]
    Trim(ask::TrimArgs),
    /// Change options of a running process
    #[command(after_help = ask::SET_EXAMPLES)]
    Set(ask::SetArgs),
    /// Replay a recorded trace through the pool, without a GPU
    #[command(after_help = replay::EXAMPLES)]
    Replay(replay::Args),
    /// Make a page, or a viewer's file, of a recorded trace
    #[command(after_help = report::EXAMPLES)]
    Report(report::Args),
    /// Find the options worth setting for a recorded trace
    #[command(after_help = tune::EXAMPLES)]
    Tune(tune::Args),
    /// List the environment variables that the library reads
    #[command(after_help = env::EXAMPLES)]
    Env(env::Args),
    /// Print a shell's completions
    #[command(after_help = docs::COMPLETIONS_EXAMPLES)]
    Completions(docs::CompletionsArgs),
    /// Print a manual page
    #[command(after_help = docs::MAN_EXAMPLES)]
    Man(docs::ManArgs),
}

/// Why a command failed, and this process's exit status: 2 for wrong use, 1 for
/// what went wrong; `run` has the shells' 126 and 127.
#[derive(Debug)]
pub struct Failure {
    /// For people; empty where there is nothing to say.
    pub message: String,
    /// The exit status.
    pub code: u8,
}

/// Makes one.
pub fn failure(code: u8, message: String) -> Failure {
    Failure { message, code }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        // Comes back only if the program could not be started.
        Command::Run(args) => Err(run::run(args)),
        Command::Attach(args) => attach::attach(&args).and_then(|text| print(&text)),
        Command::Detach(args) => attach::detach(&args).and_then(|text| print(&text)),
        Command::Check(args) => match check::run(&args) {
            Ok(code) => return ExitCode::from(code),
            Err(failure) => Err(failure),
        },
        Command::Observe(args) => match observe::run(&args) {
            Ok(code) => return ExitCode::from(code),
            Err(failure) => Err(failure),
        },
        Command::Stat(args) => stat::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Trim(args) => ask::trim(&args),
        Command::Set(args) => ask::set(&args),
        Command::Replay(args) => replay::run(&args).and_then(|text| print(&text)),
        Command::Tune(args) => tune::run(&args).and_then(|text| print(&text)),
        Command::Report(args) => report::run(&args),
        Command::Env(args) => print(&env::text(&args)),
        Command::Completions(args) => docs::completions(&args),
        Command::Man(args) => docs::man(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                say(&failure.message);
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Writes to stdout.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        // The reader has seen enough, as `head` does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(failure(0, String::new())),
        Err(error) => Err(failure(1, format!("cannot write to stdout: {error}"))),
    }
}

/// One line on stderr. Not `eprintln!`, which panics when stderr is closed.
pub fn say(message: &str) {
    let _ = writeln!(io::stderr(), "gpupool: {message}");
}
