//! `gpupool top`: the figures of all processes with the library, live.

mod rows;
mod screen;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use gpupool::config::Mode;
use gpupool::process::page::watch::{self, Watch};
use gpupool::process::snapshot::Snapshot;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::process::Process;
use crate::{Failure, ask, failure};
use rows::Row;

pub const EXAMPLES: &str =
    "Keys: up and down select a process, t has it give unused memory back, p switches
its pool off and on, q quits.

Examples:
  gpupool top
  gpupool top 4711 --every 500ms

Processes of other users are seen by root only. Without a terminal:
gpupool stat --all --every 1s.";

#[derive(clap::Args)]
pub struct Args {
    /// Only this process
    pid: Option<u32>,
    /// Time between two readings
    #[arg(long, value_name = "TIME", value_parser = crate::args::time, default_value = "1s")]
    every: Duration,
}

/// How long a process that is asked for something may take to begin.
const PATIENCE: Duration = Duration::from_secs(2);

/// A reading and when it was made.
struct Reading {
    process: Process,
    snapshot: Snapshot,
    at: Instant,
}

/// What is on the screen.
pub struct State {
    only: Option<u32>,
    rows: Vec<Row>,
    /// The process selected; there may be none.
    selected: Option<u32>,
    /// What the last key has led to.
    message: String,
    answers: (Sender<String>, Receiver<String>),
    last: BTreeMap<u32, Reading>,
}

/// Runs until a key ends it.
pub fn run(args: &Args) -> Result<(), Failure> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let cure = "gpupool stat --all --every 1s";
        return Err(failure(
            2,
            format!("top needs a terminal; without one: {cure}"),
        ));
    }
    if let Some(pid) = args.pid {
        // A wrong number is told before the screen is taken.
        Watch::open(pid).map_err(|why| failure(1, format!("process {pid}: {why}")))?;
    }
    let mut state = State {
        only: args.pid,
        rows: Vec::new(),
        selected: args.pid,
        message: String::new(),
        answers: channel(),
        last: BTreeMap::new(),
    };
    let mut terminal =
        ratatui::try_init().map_err(|error| failure(1, format!("the terminal: {error}")))?;
    let result = drive(&mut terminal, &mut state, args.every);
    ratatui::restore();
    result.map_err(|error| failure(1, format!("the terminal: {error}")))
}

fn drive(
    terminal: &mut ratatui::DefaultTerminal,
    state: &mut State,
    every: Duration,
) -> std::io::Result<()> {
    let mut next = Instant::now();
    loop {
        if Instant::now() >= next {
            state.read();
            next = Instant::now() + every;
        }
        while let Ok(answer) = state.answers.1.try_recv() {
            state.message = answer;
        }
        terminal.draw(|frame| screen::draw(frame, state))?;
        // Short, so that answers appear soon.
        let wait = next
            .saturating_duration_since(Instant::now())
            .min(Duration::from_millis(100));
        if !event::poll(wait)? {
            continue;
        }
        if let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            match (key.code, key.modifiers) {
                (KeyCode::Char('c'), KeyModifiers::CONTROL)
                | (KeyCode::Char('q') | KeyCode::Esc, _) => return Ok(()),
                (code, _) => state.key(code),
            }
        }
    }
}

impl State {
    /// Reads all processes again.
    fn read(&mut self) {
        let pids = match self.only {
            Some(pid) => vec![pid],
            None => watch::all(),
        };
        let mut now = BTreeMap::new();
        let mut rows = Vec::new();
        for pid in pids {
            // One that has just ended is left out.
            let Ok(watch) = Watch::open(pid) else {
                continue;
            };
            let reading = Reading {
                process: Process::of(pid),
                snapshot: watch.read(),
                at: Instant::now(),
            };
            let before = self.last.get(&pid);
            let before = before.map(|old| (&old.snapshot, reading.at.duration_since(old.at)));
            rows.extend(rows::of(&reading.process, &reading.snapshot, before));
            now.insert(pid, reading);
        }
        if self.only.is_some() && rows.is_empty() {
            self.message = String::from("the process has ended; q quits");
        }
        self.last = now;
        self.rows = rows;
        let is_there = |pid: &u32| self.last.contains_key(pid);
        self.selected = self
            .selected
            .filter(is_there)
            .or_else(|| self.last.keys().next().copied());
    }

    fn key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Up | KeyCode::Char('k') => self.select(false),
            KeyCode::Down | KeyCode::Char('j') => self.select(true),
            KeyCode::Char('t') => self.ask("trim"),
            KeyCode::Char('p') => {
                let is_off = self
                    .selected
                    .and_then(|pid| self.last.get(&pid))
                    .is_some_and(|reading| reading.snapshot.mode == Mode::Off);
                self.ask(if is_off {
                    "set GPUPOOL_MODE=pool"
                } else {
                    "set GPUPOOL_MODE=off"
                });
            }
            _ => {}
        }
    }

    fn select(&mut self, down: bool) {
        let pids: Vec<u32> = self.last.keys().copied().collect();
        let at = pids.iter().position(|pid| Some(*pid) == self.selected);
        let next = match (at, down) {
            (Some(at), true) => (at + 1).min(pids.len() - 1),
            (Some(at), false) => at.saturating_sub(1),
            (None, _) => 0,
        };
        self.selected = pids.get(next).copied();
    }

    /// Asks the selected process, without holding up the screen.
    fn ask(&mut self, request: &'static str) {
        let Some(pid) = self.selected else {
            self.message = String::from("no process is selected");
            return;
        };
        self.message = format!("{pid}: {request} …");
        let answer = self.answers.0.clone();
        std::thread::spawn(move || {
            let text = match ask::ask(pid, request, PATIENCE) {
                Ok(text) => format!("{pid}: {text}"),
                Err(failure) => failure.message,
            };
            // Nobody listens when the screen is gone.
            let _ = answer.send(text);
        });
    }
}
