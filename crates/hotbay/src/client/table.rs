//! Plain columns, two spaces apart, that fit the terminal.
//!
//! What does not fit is taken from the columns that a table names for it, step by step; a column never changes its
//! place. Without a width (a pipe, or `-o wide`) nothing is cut.

use super::screen::{cut_end, cut_start, plain};

const GAP: usize = 2;

/// How a cell is coloured where there is colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Busy,
    Bad,
}

impl Tone {
    const fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Good => Some("32"),
            Self::Busy => Some("33"),
            Self::Bad => Some("31"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub(crate) fn new(text: impl AsRef<str>) -> Self {
        Self::toned(text, Tone::Plain)
    }

    pub(crate) fn toned(text: impl AsRef<str>, tone: Tone) -> Self {
        Self { text: plain(text.as_ref()), tone }
    }

    /// A value that may be missing.
    pub(crate) fn maybe(text: Option<&str>) -> Self {
        Self::new(text.unwrap_or("-"))
    }
}

/// One thing to do when a table is too wide. Columns are named by their titles.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Squeeze {
    /// Cut its longest texts, down to this width.
    Cut { title: &'static str, least: usize },
    /// Leave it out.
    Drop { title: &'static str },
}

/// Titles, rows, and what gives way first.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) titles: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<Cell>>,
    pub(crate) squeezes: &'static [Squeeze],
    /// The column whose end matters more than its beginning.
    pub(crate) keeps_its_end: &'static str,
}

/// The width of each column; `None`: it is left out.
pub(crate) type Widths = Vec<Option<usize>>;

impl Table {
    /// The widths at which nothing is cut, and no column is narrower than in `before`.
    pub(crate) fn natural(&self, before: &Widths) -> Widths {
        let titles = self.titles.iter().enumerate();
        titles
            .map(|(index, title)| {
                let texts = self.rows.iter().map(|row| row[index].text.chars().count());
                let before = before.get(index).copied().flatten().unwrap_or(0);
                Some(texts.max().unwrap_or(0).max(title.len()).max(before))
            })
            .collect()
    }

    /// The widths for a terminal: what is too much is taken step by step, and what a step took too much is given back.
    pub(crate) fn fitted(&self, columns: usize) -> Widths {
        let natural = self.natural(&Widths::new());
        let mut widths = natural.clone();
        for squeeze in self.squeezes {
            let excess = total(&widths).saturating_sub(columns);
            if excess == 0 {
                break;
            }
            match squeeze {
                Squeeze::Cut { title, least } => {
                    if let Some(width) = &mut widths[self.index(title)] {
                        *width = width.saturating_sub(excess).max(*least).min(*width);
                    }
                }
                Squeeze::Drop { title } => widths[self.index(title)] = None,
            }
        }
        for squeeze in self.squeezes {
            let spare = columns.saturating_sub(total(&widths));
            if let Squeeze::Cut { title, .. } = squeeze
                && let index = self.index(title)
                && let (Some(width), Some(wanted)) = (&mut widths[index], natural[index])
            {
                *width = wanted.min(*width + spare);
            }
        }
        widths
    }

    pub(crate) fn title_line(&self, widths: &Widths) -> String {
        let titles: Vec<_> = self.titles.iter().map(Cell::new).collect();
        self.line(&titles, widths, false)
    }

    pub(crate) fn row_lines(&self, widths: &Widths, colour: bool) -> Vec<String> {
        self.rows.iter().map(|row| self.line(row, widths, colour)).collect()
    }

    fn line(&self, cells: &[Cell], widths: &Widths, colour: bool) -> String {
        let mut line = String::new();
        // Spaces are written only before a text, so that no line ends with them.
        let mut spaces = 0;
        for ((cell, width), title) in cells.iter().zip(widths).zip(&self.titles) {
            let Some(width) = *width else { continue };
            let cut = if *title == self.keeps_its_end { cut_start } else { cut_end };
            let text = cut(&cell.text, width);
            if !text.is_empty() {
                line.extend(std::iter::repeat_n(' ', spaces));
                spaces = 0;
                match cell.tone.code().filter(|_| colour) {
                    Some(code) => line.push_str(&format!("\x1b[{code}m{text}\x1b[0m")),
                    None => line.push_str(&text),
                }
            }
            spaces += width.saturating_sub(text.chars().count()) + GAP;
        }
        line
    }

    fn index(&self, title: &str) -> usize {
        let found = self.titles.iter().position(|known| *known == title);
        found.expect("a table names its own columns")
    }
}

fn total(widths: &Widths) -> usize {
    let shown = widths.iter().flatten();
    shown.clone().sum::<usize>() + shown.count().saturating_sub(1) * GAP
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[[&str; 4]]) -> Table {
        Table {
            titles: vec!["NAME", "PATH", "MODEL", "WHY"],
            rows: rows.iter().map(|row| row.iter().map(Cell::new).collect()).collect(),
            squeezes: &[
                Squeeze::Cut { title: "WHY", least: 10 },
                Squeeze::Cut { title: "MODEL", least: 4 },
                Squeeze::Drop { title: "MODEL" },
                Squeeze::Cut { title: "PATH", least: 8 },
                Squeeze::Drop { title: "PATH" },
                Squeeze::Cut { title: "WHY", least: 3 },
            ],
            keeps_its_end: "PATH",
        }
    }

    fn shown(table: &Table, widths: &Widths) -> Vec<String> {
        let mut lines = vec![table.title_line(widths)];
        lines.extend(table.row_lines(widths, false));
        lines
    }

    const ROWS: [[&str; 4]; 2] = [
        ["d-1", "/dev/nvme0n1", "ACME NV-2000", ""],
        ["d-2", "/dev/sda", "Example", "system drive (mounted at /)"],
    ];

    #[test]
    fn without_a_width_nothing_is_cut_and_no_line_ends_with_spaces() {
        let table = table(&ROWS);
        assert_eq!(
            shown(&table, &table.natural(&Widths::new())),
            [
                "NAME  PATH          MODEL         WHY",
                "d-1   /dev/nvme0n1  ACME NV-2000",
                "d-2   /dev/sda      Example       system drive (mounted at /)",
            ]
        );
    }

    #[test]
    fn columns_give_way_in_their_order_and_every_line_fits() {
        let table = table(&ROWS);
        for columns in 13..80 {
            for line in shown(&table, &table.fitted(columns)) {
                assert!(line.chars().count() <= columns, "{columns}: {line:?}");
            }
        }
        assert_eq!(
            shown(&table, &table.fitted(45))[2],
            "d-2   /dev/sda      Example       system dri…"
        );
        assert_eq!(shown(&table, &table.fitted(40))[1], "d-1   /dev/nvme0n1  ACME NV…");
        // Room that is left when a column is dropped goes to the reason.
        assert_eq!(shown(&table, &table.fitted(34))[2], "d-2   /dev/sda      system drive…");
        assert_eq!(shown(&table, &table.fitted(26))[1], "d-1   …nvme0n1");
        assert_eq!(shown(&table, &table.fitted(20))[2], "d-2   system drive…");
    }

    #[test]
    fn rows_that_come_later_line_up_with_those_before() {
        let before = table(&ROWS).natural(&Widths::new());
        let later = table(&[["d-1", "/dev/sdb", "X", "y"]]);
        let lines = later.row_lines(&later.natural(&before), false);
        assert_eq!(lines, ["d-1   /dev/sdb      X             y"]);
    }

    #[test]
    fn colour_surrounds_the_text_alone() {
        let mut table = table(&[["d-1", "", "", "bad"]]);
        table.rows[0][3] = Cell::toned("bad", Tone::Bad);
        let widths = table.natural(&Widths::new());
        assert_eq!(table.row_lines(&widths, true), ["d-1                \x1b[31mbad\x1b[0m"]);
        assert_eq!(table.row_lines(&widths, false), ["d-1                bad"]);
    }
}
