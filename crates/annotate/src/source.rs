//! The text of a file, its tree, and the directives in it.

use std::ops::Range;

use tree_sitter::{Node, Parser, Tree};

use crate::{Refusal, directive::Directive};

/// A C source.
#[derive(Debug)]
pub(crate) struct Source {
    /// As it is named in messages.
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) tree: Tree,
    /// Where lines begin.
    lines: Vec<usize>,
}

impl Source {
    pub(crate) fn new(name: &str, bytes: &[u8]) -> Self {
        let mut parser = Parser::new();
        parser.set_language(&tree_sitter_c::LANGUAGE.into()).expect("the grammar is of this version");
        let tree = parser.parse(bytes, None).expect("nothing interrupts it");
        let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
        let lines = std::iter::once(0).chain(ends).collect();
        Self { name: name.to_owned(), bytes: bytes.to_vec(), tree, lines }
    }

    /// Line and column of a byte, from 0 on.
    pub(crate) fn place(&self, at: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|start| *start <= at) - 1;
        (line, at - self.lines[line])
    }

    /// The line that a byte is in.
    pub(crate) fn line(&self, at: usize) -> &[u8] {
        let start = self.lines[self.place(at).0];
        let end =
            self.bytes[start..].iter().position(|byte| *byte == b'\n').map_or(self.bytes.len(), |end| start + end);
        self.bytes[start..end].trim_ascii_end()
    }

    /// The text of a node.
    pub(crate) fn text(&self, node: Node<'_>) -> String {
        String::from_utf8_lossy(&self.bytes[node.byte_range()]).into_owned()
    }

    /// A refusal of a directive because of where it is. If the C before it is not understood, that
    /// may be why.
    pub(crate) fn misplaced(&self, range: Range<usize>, message: &str) -> Refusal {
        let lost = first_error(self.tree.root_node(), range.start).map(|at| self.place(at).0 + 1);
        let lost =
            lost.map(|line| format!(" (the C in line {line} is not understood; write it without macros and #if)"));
        Refusal::at(self, range, format!("{message}{}", lost.unwrap_or_default()))
    }

    /// The directives that it has, in their order.
    pub(crate) fn directives(&self) -> Result<Vec<(Directive, Node<'_>)>, Vec<Refusal>> {
        let lines = pragmas(&self.bytes);
        let mut nodes = Vec::new();
        collect(self.tree.root_node(), &mut nodes);
        let (mut found, mut refusals) = (Vec::new(), Vec::new());
        for range in lines {
            let node = nodes.iter().find(|node| node.byte_range().contains(&(range.end - 1)));
            match (Directive::parse(self, range.clone()), node) {
                (Err(refusal), _) => refusals.push(refusal),
                (Ok(directive), Some(node)) => found.push((directive, *node)),
                (Ok(_), None) => {
                    let message = "the C around this directive is not understood; put it between two statements or \
                                   declarations that no macro is a part of";
                    refusals.push(Refusal::at(self, range, message));
                }
            }
        }
        if refusals.is_empty() { Ok(found) } else { Err(refusals) }
    }
}

/// The first place before `end` that the grammar does not understand.
fn first_error(node: Node<'_>, end: usize) -> Option<usize> {
    if node.start_byte() >= end || !node.has_error() {
        return None;
    }
    if node.is_error() || node.is_missing() {
        return Some(node.start_byte());
    }
    node.children(&mut node.walk()).find_map(|child| first_error(child, end))
}

/// All calls of the preprocessor that the tree has.
fn collect<'a>(node: Node<'a>, found: &mut Vec<Node<'a>>) {
    if node.kind() == "preproc_call" {
        found.push(node);
        return;
    }
    for child in node.children(&mut node.walk()) {
        collect(child, found);
    }
}

/// Whether there is anything to translate, without a look at the C around it.
pub(crate) fn has_directives(bytes: &[u8]) -> bool {
    !pragmas(bytes).is_empty()
}

/// Where lines with `#pragma nvcp` are, without their ends. Comments and texts have none.
fn pragmas(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let (mut at, mut is_start) = (0, true);
    while at < bytes.len() {
        let rest = &bytes[at..];
        if rest.starts_with(b"/*") {
            let end = rest[2..].windows(2).position(|pair| pair == b"*/");
            at = end.map_or(bytes.len(), |end| at + end + 4);
        } else if rest.starts_with(b"//") {
            at = end_of_line(bytes, at);
        } else if rest[0] == b'"' || rest[0] == b'\'' {
            at = end_of_text(bytes, at);
            is_start = false;
        } else if is_start && rest[0] == b'#' {
            let end = end_of_line(bytes, at);
            let words = String::from_utf8_lossy(&bytes[at + 1..end]);
            let mut words = words.split_ascii_whitespace();
            let is_nvcp = words.next() == Some("pragma") && words.next() == Some("nvcp");
            if is_nvcp {
                found.push(at..end);
            }
            at = end;
        } else {
            is_start = rest[0] == b'\n' || is_start && rest[0].is_ascii_whitespace();
            at += 1;
        }
    }
    found
}

/// Where a line ends that may be continued by a backslash.
fn end_of_line(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'\n' {
        let is_continued = bytes[at] == b'\\' && matches!(&bytes[at + 1..], [b'\n', ..] | [b'\r', b'\n', ..]);
        at += if is_continued { if bytes[at + 1] == b'\r' { 3 } else { 2 } } else { 1 };
    }
    let is_windows = at > 0 && at < bytes.len() && bytes[at - 1] == b'\r';
    if is_windows { at - 1 } else { at }
}

/// Where a text or character ends. One that does not ends with its line.
fn end_of_text(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != bytes[start] && bytes[at] != b'\n' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_found_where_a_compiler_finds_them() {
        let text =
            b"/* \n#pragma nvcp a\n*/ # pragma nvcp b\n\"\\\"\" // \\\n#pragma nvcp c\n  #\tpragma\tnvcp \\\n d\n\
                     x #pragma nvcp e\n#pragma nvcpx\n'\"'\n#pragma nvcp f\r\n";
        let found: Vec<_> = pragmas(text).into_iter().map(|range| String::from_utf8_lossy(&text[range])).collect();
        assert_eq!(found, ["# pragma nvcp b", "#\tpragma\tnvcp \\\n d", "#pragma nvcp f"]);
    }
}
