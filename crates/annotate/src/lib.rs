//! Translates C sources with `#pragma nvcp` to C that calls liboutcrop. All other text stays as it
//! is, byte for byte, and `#line` keeps compilers and debuggers on the original. See
//! docs/annotate.md.
//!
//! The tree of the source (tree-sitter) says where structs, calls, loops and declarations are. What
//! it cannot say, such as sizes, offsets and types from headers, the generated C has the compiler
//! say and check.

#![forbid(unsafe_code)]

mod cc;
mod describe;
mod directive;
mod hints;
mod refusal;
mod source;
mod statements;
mod types;

use std::{
    collections::BTreeSet,
    ops::Range,
    path::{Path, PathBuf},
};

pub use self::{
    cc::{Compilation, Error as CompilationError, Prefix},
    refusal::Refusal,
};
use self::{
    describe::{Described, quoted},
    directive::{Directive, What},
    source::Source,
    statements::Statements,
    types::{Struct, Types},
};
use tree_sitter::Node;

/// What became of a source.
#[derive(Debug)]
pub struct Translation {
    /// The C that is to be compiled.
    pub text: Vec<u8>,
    /// How many directives it had, those before structs not counted.
    pub directives: usize,
    /// How many lines it has more.
    pub lines_added: usize,
}

/// A change of the text.
#[derive(Debug)]
struct Edit {
    range: Range<usize>,
    text: String,
}

/// Translates a source. `name` is what messages and `#line` call it; headers that it includes by
/// `"..."` are looked for beside it, because they may define its structs.
pub fn translate(name: &Path, text: &[u8]) -> Result<Translation, Vec<Refusal>> {
    if !source::has_directives(text) {
        return Ok(Translation { text: text.to_vec(), directives: 0, lines_added: 0 });
    }
    let mut sources = vec![Source::new(&name.display().to_string(), text)];
    add_headers(&mut sources, name);
    let mut types = Types::default();
    // Those of headers first: the source itself comes last, and wins.
    for (number, source) in sources.iter().enumerate().rev() {
        types.add(source, number);
    }
    let mut described = Described::default();
    let mut refusals = Vec::new();
    for (number, source) in sources.iter().enumerate().rev() {
        match source.directives() {
            Ok(found) => {
                let structs = found.iter().filter(|(directive, _)| directive.what == What::Struct);
                refusals.extend(structs.filter_map(|(directive, node)| {
                    add_struct(&mut described, &types, (source, number), directive, *node).err()
                }));
                let others = found.iter().filter(|(directive, _)| directive.what != What::Struct);
                refusals.extend(others.filter(|_| number > 0).map(|(directive, _)| {
                    let message = "only `#pragma nvcp` before a struct can be in a header; put this into the source";
                    Refusal::at(source, directive.range.clone(), message)
                }));
            }
            Err(more) => refusals.extend(more),
        }
    }
    if !refusals.is_empty() {
        return Err(refusals);
    }
    let edits = edits(&sources, &types, &described)?;
    let directives = sources[0].directives()?;
    let directives = directives.iter().filter(|(directive, _)| directive.what != What::Struct).count();
    let text = apply(text, edits);
    let lines = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count();
    let lines_added = lines(&text) - lines(&sources[0].bytes);
    Ok(Translation { text, directives, lines_added })
}

/// Adds the headers that a source includes by `"..."`, and those that they include.
fn add_headers(sources: &mut Vec<Source>, name: &Path) {
    let mut known = BTreeSet::new();
    let mut waiting: Vec<(PathBuf, usize)> = vec![(name.to_owned(), 0)];
    while let Some((path, number)) = waiting.pop() {
        let directory = path.parent().map(Path::to_owned).unwrap_or_default();
        let mut included = Vec::new();
        let root = sources[number].tree.root_node();
        for_each(root, &mut |node| {
            if let Some(path) = node.child_by_field_name("path").filter(|it| it.kind() == "string_literal") {
                included.push(sources[number].text(path).trim_matches('"').to_owned());
            }
        });
        for header in included {
            let path = directory.join(header);
            // What is not there is found by the compiler elsewhere, or by nobody.
            if let Some(bytes) = std::fs::read(&path).ok().filter(|_| known.insert(path.clone())) {
                sources.push(Source::new(&path.display().to_string(), &bytes));
                waiting.push((path, sources.len() - 1));
            }
        }
    }
}

/// Calls something with every include.
fn for_each<'a>(node: Node<'a>, work: &mut impl FnMut(Node<'a>)) {
    for child in node.named_children(&mut node.walk()) {
        match child.kind() {
            "preproc_include" => work(child),
            "preproc_if"
            | "preproc_ifdef"
            | "preproc_else"
            | "preproc_elif"
            | "linkage_specification"
            | "declaration_list"
            | "ERROR" => for_each(child, work),
            _ => {}
        }
    }
}

/// Adds the struct that follows a directive.
fn add_struct(
    described: &mut Described,
    types: &Types,
    (source, number): (&Source, usize),
    directive: &Directive,
    node: Node<'_>,
) -> Result<(), Refusal> {
    let mut next = node.next_named_sibling();
    while let Some(comment) = next.filter(|node| node.kind() == "comment") {
        next = comment.next_named_sibling();
    }
    let is_struct = |it: &Node<'_>| it.kind() == "struct_specifier" && it.child_by_field_name("body").is_some();
    let definition = next.and_then(|next| match next.kind() {
        "struct_specifier" => Some(next),
        _ => next.child_by_field_name("type"),
    });
    let definition = definition.filter(is_struct);
    let is_it = |it: Node<'_>, known: &Struct| (known.source, &known.range) == (number, &it.byte_range());
    let found = definition.and_then(|it| types.structs.iter().find(|(_, known)| is_it(it, known)));
    match found {
        Some((key, _)) => described.add(types, key, source, directive),
        None => {
            let message = "the definition of a struct at file scope is to follow this directive";
            Err(source.misplaced(directive.range.clone(), message))
        }
    }
}

/// All changes of the first source.
fn edits(sources: &[Source], types: &Types, described: &Described) -> Result<Vec<Edit>, Vec<Refusal>> {
    let source = &sources[0];
    let directives = source.directives()?;
    let added = directives.iter().filter(|(directive, _)| directive.what == What::AddHead);
    let added = added
        .flat_map(|(directive, _)| directive.arguments())
        .map(|argument| statements::split(source, argument).0.text);
    let mut statements = Statements::new(sources, types, described, added.collect());
    let mut refusals = Vec::new();
    for (directive, node) in &directives {
        refusals.extend(statements.add(directive, *node).err());
    }
    let mut edits = statements.edits;
    let name = quoted(&source.name);
    edits.push(Edit { range: 0..0, text: format!("#line 1 \"{name}\"\n") });
    let first = |is_wanted: &dyn Fn(&Directive) -> bool| {
        directives.iter().find(|(directive, _)| is_wanted(directive)).map(|(_, node)| top(*node).start_byte())
    };
    let mut insert = |at: usize, text: &str| {
        let (line, column) = source.place(at);
        let is_alone = source.bytes[at - column..at].trim_ascii().is_empty();
        let (at, before) = if is_alone { (at - column, "") } else { (at, "\n") };
        let text = format!("{before}{text}#line {} \"{name}\"\n", line + 1);
        edits.push(Edit { range: at..at, text });
    };
    if let Some(at) = first(&|directive| directive.what != What::Struct) {
        insert(at, "#include <outcrop_nvcp.h>\n");
    }
    if let Some(at) = first(&|directive| directive.what == What::AddHead || hints::names_function(directive)) {
        let late = types.structs.iter().filter(|(key, it)| described.has(key) && it.source == 0 && it.range.start > at);
        refusals.extend(late.map(|(key, it)| {
            let message = format!("{key} is defined behind the function that adds structures; move it before that one");
            Refusal::at(source, it.range.start..it.range.start + 1, message)
        }));
        match described.tables(types, sources) {
            Ok(tables) => insert(at, &tables),
            Err(more) => refusals.extend(more),
        }
    }
    // Behind the tables, if these are at the same place.
    for (at, text) in &statements.functions {
        insert(*at, text);
    }
    if refusals.is_empty() { Ok(edits) } else { Err(refusals) }
}

/// What is at the top level around a node.
fn top(mut node: Node<'_>) -> Node<'_> {
    while let Some(parent) = node.parent().filter(|parent| !is_file_scope(parent.kind())) {
        node = parent;
    }
    node
}

/// Whether a node of this kind has declarations: the file, or what is not understood of it, which a
/// macro somewhere may have made of much of the file.
fn is_file_scope(kind: &str) -> bool {
    matches!(kind, "translation_unit" | "ERROR")
}

fn apply(text: &[u8], mut edits: Vec<Edit>) -> Vec<u8> {
    // Those at the same place stay in their order.
    edits.sort_by_key(|edit| (edit.range.start, edit.range.end));
    let (mut out, mut at) = (Vec::with_capacity(text.len() + 4096), 0);
    for edit in edits {
        out.extend_from_slice(&text[at..edit.range.start]);
        out.extend_from_slice(edit.text.as_bytes());
        at = edit.range.end;
    }
    out.extend_from_slice(&text[at..]);
    out
}
