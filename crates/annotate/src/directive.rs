//! What a line with `#pragma nvcp` says.

use std::ops::Range;

use crate::{Refusal, Source};

/// One directive.
#[derive(Debug)]
pub(crate) struct Directive {
    /// All of the line, from `#` on.
    pub(crate) range: Range<usize>,
    pub(crate) what: What,
    pub(crate) clauses: Vec<Clause>,
}

/// Which one it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// Before a struct.
    Struct,
    Init,
    AddHead,
    Persistent,
    PotentialPersistent,
    Restore,
}

/// A word with arguments in parentheses.
#[derive(Debug)]
pub(crate) struct Clause {
    pub(crate) word: Part,
    pub(crate) arguments: Vec<Part>,
}

/// A part of the line.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) text: String,
    pub(crate) range: Range<usize>,
}

const DIRECTIVES: [(&str, What); 5] = [
    ("init", What::Init),
    ("add_head", What::AddHead),
    ("persistent", What::Persistent),
    ("potential_persistent", What::PotentialPersistent),
    ("restore", What::Restore),
];

/// What may stand behind `#pragma nvcp` before a struct.
const OF_STRUCTS: [&str; 5] = ["length", "link", "skip", "tag", "text"];

impl Directive {
    pub(crate) fn parse(source: &Source, range: Range<usize>) -> Result<Self, Refusal> {
        let clauses = clauses(source, &range)?;
        let known = |clause: &Clause| DIRECTIVES.iter().find(|(word, _)| *word == clause.word.text).map(|it| it.1);
        let what = match clauses.first() {
            None => What::Struct,
            Some(first) if OF_STRUCTS.contains(&first.word.text.as_str()) => What::Struct,
            Some(first) => known(first).ok_or_else(|| {
                let message = format!(
                    "there is no directive `{}`; there are nvcp (before a struct), init, add_head, persistent, \
                     potential_persistent and restore",
                    first.word.text
                );
                Refusal::at(source, first.word.range.clone(), message)
            })?,
        };
        let others = if what == What::Struct { &clauses[..] } else { &clauses[1..] };
        let allowed: &[&str] = match what {
            What::Struct => &OF_STRUCTS,
            What::Init => &["mtbf", "ranks"],
            _ => &[],
        };
        for clause in others {
            if !allowed.contains(&clause.word.text.as_str()) {
                let message = match allowed {
                    [] => format!("`{}` follows a directive that is complete; remove it", clause.word.text),
                    _ => format!("`{}` is not known here; there is {}", clause.word.text, allowed.join(", ")),
                };
                return Err(Refusal::at(source, clause.word.range.clone(), message));
            }
        }
        Ok(Self { range, what, clauses })
    }

    /// What stands in the parentheses of the directive itself.
    pub(crate) fn arguments(&self) -> &[Part] {
        self.clauses.first().map_or(&[], |clause| &clause.arguments)
    }
}

/// Words with arguments.
fn clauses(source: &Source, range: &Range<usize>) -> Result<Vec<Clause>, Refusal> {
    let bytes = &source.bytes;
    // Behind `nvcp`.
    let start = bytes[range.clone()].windows(4).position(|word| word == b"nvcp").unwrap_or(0) + 4;
    let (mut at, end) = (range.start + start, range.end);
    let mut clauses = Vec::new();
    loop {
        while at < end && (bytes[at].is_ascii_whitespace() || bytes[at] == b'\\') {
            at += 1;
        }
        let is_comment = bytes[at..end].starts_with(b"//") || bytes[at..end].starts_with(b"/*");
        let is_end = bytes[at..end].trim_ascii() == b";";
        if at == end || is_comment || is_end {
            return Ok(clauses);
        }
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let length = bytes[at..end].iter().position(|byte| !is_word(*byte)).unwrap_or(end - at);
        if length == 0 {
            return Err(Refusal::at(source, at..at + 1, "a word is expected here, as in `init(array, 2)`"));
        }
        let word = part(source, at..at + length);
        at += length;
        while at < end && bytes[at].is_ascii_whitespace() {
            at += 1;
        }
        if at == end || bytes[at] != b'(' {
            let message = format!("`{0}` needs arguments in parentheses, as in `{0}(head)`", word.text);
            return Err(Refusal::at(source, word.range, message));
        }
        let (arguments, behind) = arguments(source, at, end)?;
        clauses.push(Clause { word, arguments });
        at = behind;
    }
}

/// What is between parentheses, the first of which is at `open`, and where it ends.
fn arguments(source: &Source, open: usize, end: usize) -> Result<(Vec<Part>, usize), Refusal> {
    let (mut depth, mut start, mut arguments) = (0, open + 1, Vec::new());
    for at in open..end {
        let byte = source.bytes[at];
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            _ => {}
        }
        if depth == 1 && byte == b',' || depth == 0 {
            let argument = part(source, start..at);
            if !argument.text.is_empty() {
                arguments.push(argument);
            } else if depth == 1 || !arguments.is_empty() {
                return Err(Refusal::at(source, at..at + 1, "an argument is missing here"));
            }
            start = at + 1;
        }
        if depth == 0 {
            return Ok((arguments, at + 1));
        }
    }
    Err(Refusal::at(source, open..open + 1, "this parenthesis is not closed"))
}

/// A part of a line, without spaces around it. What was continued on the next line is one line.
pub(crate) fn part(source: &Source, range: Range<usize>) -> Part {
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'\\';
    let bytes = &source.bytes[range.clone()];
    let start = bytes.iter().position(|byte| !is_space(byte)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|byte| !is_space(byte)).map_or(start, |last| last + 1);
    let text = String::from_utf8_lossy(&bytes[start..end]).replace("\\\r\n", " ").replace("\\\n", " ");
    Part { text, range: range.start + start..range.start + end }
}
