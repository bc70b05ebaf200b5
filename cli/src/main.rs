//! The `gpupool` command: runs programs with the library, and lists its options.

mod env;
mod run;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Makes GPU memory allocation nearly free for unmodified CUDA programs.
#[derive(Parser)]
#[command(name = "gpupool", version, arg_required_else_help = true)]
#[command(after_help = "Examples:
  gpupool run -- ./app --batch 8
  gpupool run --set MAX=50% --stats -- python3 serve.py
  gpupool env

Without this command: LD_PRELOAD=/path/to/libgpupool.so ./app")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program with the library
    #[command(after_help = run::EXAMPLES)]
    Run(run::Args),
    /// List the environment variables that the library reads
    #[command(after_help = env::EXAMPLES)]
    Env(env::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => {
            // Comes back only if the program could not be started.
            let failure = run::run(args);
            say(&failure.message);
            ExitCode::from(failure.code)
        }
        Command::Env(args) => match io::stdout().lock().write_all(env::text(&args).as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            // The reader has seen enough, as `head` does.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(error) => {
                say(&format!("cannot write to stdout: {error}"));
                ExitCode::FAILURE
            }
        },
    }
}

/// One line on stderr. Not `eprintln!`, which panics when stderr is closed.
fn say(message: &str) {
    let _ = writeln!(io::stderr(), "gpupool: {message}");
}
