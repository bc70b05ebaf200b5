//! `gpupool completions` and `gpupool man`: made from the command's own
//! definition, so that they are never out of date.

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::{Cli, Failure, failure};

pub const COMPLETIONS_EXAMPLES: &str = "Examples:
  gpupool completions bash > ~/.local/share/bash-completion/completions/gpupool
  gpupool completions zsh > ~/.zfunc/_gpupool
  gpupool completions fish > ~/.config/fish/completions/gpupool.fish";

pub const MAN_EXAMPLES: &str = "Examples:
  gpupool man | man -l -
  gpupool man stat > /usr/local/share/man/man1/gpupool-stat.1";

#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

#[derive(clap::Args)]
pub struct ManArgs {
    /// The page of one command; without it the page of all
    command: Option<String>,
}

/// Prints the completions.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "gpupool", &mut text);
    print(&text)
}

/// Prints the page.
pub fn man(args: &ManArgs) -> Result<(), Failure> {
    let mut whole = Cli::command();
    whole.build();
    let command = match &args.command {
        None => whole,
        Some(name) => {
            let found = whole.find_subcommand(name).cloned();
            let names: Vec<&str> = whole.get_subcommands().map(Command::get_name).collect();
            found.ok_or_else(|| {
                failure(
                    2,
                    format!(
                        "there is no command {name:?}; there are: {}",
                        names.join(", ")
                    ),
                )
            })?
        }
    };
    let title = match &args.command {
        None => String::from("gpupool"),
        Some(name) => format!("gpupool-{name}"),
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .title(title)
        .render(&mut text)
        .map_err(|error| failure(1, format!("cannot make the page: {error}")))?;
    print(&text)
}

fn print(text: &[u8]) -> Result<(), Failure> {
    crate::print(&String::from_utf8_lossy(text))
}
