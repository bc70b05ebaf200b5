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
#[command(
    after_help = "Begin with: gpupool observe -- ./app; its last lines say what to do next.

Examples:
  gpupool observe -- ./app --batch 8
  gpupool run -- ./app --batch 8
  gpupool run --set MAX=50% --stats -- python3 serve.py
  gpupool stat --all
  gpupool env

Without this command: LD_PRELOAD=/path/to/libgpupool.so ./app"
)]
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
    #[command(after_help = attach::DETACH_EXAMPLES)]
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
    /// Make a page, a flamegraph or a viewer's file of a recorded trace
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// The words of a command line: up to what belongs to the shell.
    fn words(line: &str) -> Vec<String> {
        let shell = ["#", ">", "|", "&", "&&", "||", ";"];
        line.split_whitespace()
            .take_while(|word| !shell.contains(word))
            .map(|word| match word {
                "PID" => String::from("4711"),
                _ => word.trim_matches('"').to_owned(),
            })
            .collect()
    }

    /// Command lines in text that is indented, as in help and Markdown.
    fn lines(text: &str) -> Vec<Vec<String>> {
        text.lines()
            .filter_map(|line| {
                let command = line.trim_start();
                let list = command.strip_prefix("command: ");
                match list {
                    // A list of words, as in a Kubernetes manifest.
                    Some(list) => serde_json::from_str(list).ok(),
                    None if command.len() < line.len() => Some(words(command)),
                    None => None,
                }
            })
            .filter(|words: &Vec<String>| {
                words
                    .first()
                    .is_some_and(|name| name.rsplit('/').next() == Some("gpupool"))
            })
            .collect()
    }

    /// Every example in the help and in the documents is one that the command
    /// takes.
    #[test]
    fn documented_commands_are_taken() {
        let mut all: Vec<Vec<String>> = Vec::new();
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            if name == "help" {
                continue;
            }
            let help = command.get_after_help().map(ToString::to_string);
            let found = lines(&help.unwrap_or_default());
            assert!(!found.is_empty(), "{name} has no example");
            all.extend(found);
        }
        for text in [
            include_str!("../../README.md"),
            include_str!("../../docs/watching.md"),
            include_str!("../../docs/trace.md"),
        ] {
            let found = lines(text);
            assert!(!found.is_empty());
            all.extend(found);
        }
        for words in all {
            if let Err(error) = Cli::try_parse_from(&words) {
                panic!("{words:?}: {error}");
            }
        }
    }
}
