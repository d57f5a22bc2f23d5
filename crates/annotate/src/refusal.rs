//! What cannot be translated: where it is, why, and what to write instead.

use std::fmt;

use crate::Source;

/// Why a source is not translated, as compilers say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The file, as it was named.
    pub file: String,
    /// The line, from 1 on.
    pub line: usize,
    /// The byte in it, from 1 on.
    pub column: usize,
    /// What is wrong, and what to write instead.
    pub message: String,
    /// The line itself.
    text: String,
    /// How many bytes of it are meant.
    width: usize,
}

impl Refusal {
    /// What is meant is at these bytes.
    pub(crate) fn at(source: &Source, range: std::ops::Range<usize>, message: impl Into<String>) -> Self {
        let (line, column) = source.place(range.start);
        let text = source.line(range.start);
        let width = range.len().min(text.len().saturating_sub(column)).max(1);
        let text = String::from_utf8_lossy(text).into_owned();
        Self { file: source.name.clone(), line: line + 1, column: column + 1, message: message.into(), text, width }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, message, text, width } = self;
        writeln!(f, "{file}:{line}:{column}: error: {message}")?;
        writeln!(f, "{line:5} | {text}")?;
        // Tabs stay, so that the caret is below what is meant.
        let before: String = text.chars().take(column - 1).map(|it| if it == '\t' { '\t' } else { ' ' }).collect();
        write!(f, "      | {before}^{}", "~".repeat(width - 1))
    }
}

impl std::error::Error for Refusal {}
