//! Drawing.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table};

use super::State;
use super::rows::COLUMNS;

const WIDTHS: [Constraint; COLUMNS.len()] = [
    Constraint::Length(8),
    Constraint::Fill(1),
    Constraint::Length(8),
    Constraint::Length(3),
    Constraint::Length(9),
    Constraint::Length(9),
    Constraint::Length(9),
    Constraint::Length(9),
    Constraint::Length(8),
    Constraint::Length(6),
    Constraint::Length(9),
    Constraint::Length(8),
];

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
    let count = state.last.len();
    let title = match count {
        0 => String::from(
            "gpupool: no process that may be looked into has the library and uses CUDA",
        ),
        1 => String::from("gpupool: 1 process"),
        _ => format!("gpupool: {count} processes"),
    };
    frame.render_widget(Line::styled(title, Modifier::BOLD), head);
    let rows = state.rows.iter().map(|row| {
        let style = if Some(row.pid) == state.selected {
            Style::new().add_modifier(Modifier::REVERSED)
        } else {
            Style::new()
        };
        Row::new(row.cells.clone()).style(style)
    });
    // The selected process is on the screen, however many there are.
    let at = state
        .rows
        .iter()
        .position(|row| Some(row.pid) == state.selected)
        .unwrap_or(0);
    let visible = usize::from(table.height.saturating_sub(1)).max(1);
    let rows = rows.skip((at + 1).saturating_sub(visible));
    let header = Row::new(COLUMNS).style(Modifier::BOLD);
    frame.render_widget(Table::new(rows, WIDTHS).header(header), table);
    frame.render_widget(Paragraph::new(state.message.as_str()), message);
    let help = "up/down select   t give memory back   p pool off/on   q quit";
    frame.render_widget(Line::styled(help, Modifier::BOLD), keys);
}
