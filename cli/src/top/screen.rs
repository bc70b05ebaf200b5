//! Drawing.

use gpupool::pool::stats::bytes;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Paragraph, Row, Table};

use super::State;
use super::rows::COLUMNS;

/// How a column is shown.
struct Shape {
    width: u16,
    /// Numbers: aligned at their end.
    is_number: bool,
    /// Left out on a narrow terminal: the highest first.
    rank: u8,
}

const fn words(width: u16, rank: u8) -> Shape {
    Shape {
        width,
        is_number: false,
        rank,
    }
}

const fn number(width: u16, rank: u8) -> Shape {
    Shape {
        width,
        is_number: true,
        rank,
    }
}

/// In the order of [`COLUMNS`]; the command takes what is left.
const SHAPES: [Shape; COLUMNS.len()] = [
    number(8, 0),
    words(12, 0),
    words(7, 1),
    number(3, 2),
    number(9, 0),
    number(9, 3),
    number(9, 6),
    number(9, 0),
    number(7, 1),
    number(5, 1),
    number(8, 4),
    number(7, 5),
];

/// Which column has the command's name.
const COMMAND: usize = 1;

/// The columns that fit into `width`, with one space between them.
fn fitting(width: u16) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..COLUMNS.len()).collect();
    let needs = |shown: &[usize]| shown.iter().map(|at| SHAPES[*at].width + 1).sum::<u16>();
    while needs(&shown) > width + 1 {
        let last = shown.iter().copied().max_by_key(|at| SHAPES[*at].rank);
        match last.filter(|at| SHAPES[*at].rank > 0) {
            Some(least) => shown.retain(|at| *at != least),
            None => break,
        }
    }
    shown
}

fn cell(at: usize, text: &str) -> Text<'_> {
    Text::from(text).alignment(if SHAPES[at].is_number {
        Alignment::Right
    } else {
        Alignment::Left
    })
}

/// The first line: how many there are, and what they hold together.
fn title(state: &State) -> String {
    let count = match state.last.len() {
        0 => {
            return String::from(
                "gpupool: no process that may be looked into has the library and uses CUDA",
            );
        }
        1 => String::from("1 process"),
        count => format!("{count} processes"),
    };
    let sum = |pick: fn(&gpupool::pool::Usage) -> u64| {
        let contexts = state.last.values().flat_map(|one| &one.snapshot.contexts);
        bytes(contexts.map(|context| pick(&context.usage)).sum())
    };
    format!(
        "gpupool: {count}, {} live, {} reserved",
        sum(|usage| usage.live),
        sum(|usage| usage.reserved)
    )
}

/// Draws everything. Only bold and reversed text: it is readable on every
/// terminal, and where colours are not wanted.
pub fn draw(frame: &mut Frame<'_>, state: &State) {
    let [head, table, message, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Line::styled(title(state), Modifier::BOLD), head);
    let shown = fitting(table.width);
    let rows = state.rows.iter().map(|row| {
        let style = if Some(row.pid) == state.selected {
            Style::new().add_modifier(Modifier::REVERSED)
        } else {
            Style::new()
        };
        Row::new(shown.iter().map(|at| cell(*at, &row.cells[*at]))).style(style)
    });
    // The selected process is on the screen, however many there are.
    let at = state
        .rows
        .iter()
        .position(|row| Some(row.pid) == state.selected)
        .unwrap_or(0);
    let visible = usize::from(table.height.saturating_sub(1)).max(1);
    let rows = rows.skip((at + 1).saturating_sub(visible));
    let header = Row::new(shown.iter().map(|at| cell(*at, COLUMNS[*at]))).style(Modifier::BOLD);
    let widths = shown.iter().map(|at| match *at {
        COMMAND => Constraint::Fill(1),
        at => Constraint::Length(SHAPES[at].width),
    });
    frame.render_widget(Table::new(rows, widths).header(header), table);
    frame.render_widget(Paragraph::new(state.message.as_str()), message);
    let help = "up/down select   t give memory back   p pool off/on   q quit";
    frame.render_widget(Line::styled(help, Modifier::BOLD), keys);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(width: u16) -> Vec<&'static str> {
        fitting(width).into_iter().map(|at| COLUMNS[at]).collect()
    }

    #[test]
    fn all_columns_or_the_most_important_ones_are_shown() {
        assert_eq!(names(120), COLUMNS);
        assert_eq!(
            names(80),
            [
                "PID", "COMMAND", "MODE", "DEV", "LIVE", "WAITING", "RESERVED", "ALLOC/s", "HIT%"
            ]
        );
        assert_eq!(names(10), ["PID", "COMMAND", "LIVE", "RESERVED"]);
    }
}
