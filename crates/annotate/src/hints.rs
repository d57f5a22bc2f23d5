//! Hints of `persistent`: what the program is about to change.

use tree_sitter::Node;

use crate::{
    Refusal, Source,
    directive::{Directive, Part, What, part},
    is_file_scope,
    statements::{Statements, named, parameters, split},
    top,
    types::{Base, Derived, Type, declarators},
};

/// Which hints there are, for messages.
const FORMS: &str = "a hint is `a[FIRST : COUNT]` for elements of an array, `degree(ranks, offsets, LEAST)` for nodes of a graph, \
                     or a function of one struct";

/// The word of hints for graphs.
const DEGREE: &str = "degree";

/// The hints of a directive.
fn hints(directive: &Directive) -> &[Part] {
    let arguments = if directive.what == What::Persistent { directive.arguments() } else { &[] };
    arguments.get(2..).unwrap_or_default()
}

fn is_name(text: &str) -> bool {
    text.chars().all(|it| it.is_ascii_alphanumeric() || it == '_') && !text.starts_with(|it: char| it.is_ascii_digit())
}

/// Whether a hint is a function, which needs the tables of structs.
pub(crate) fn names_function(directive: &Directive) -> bool {
    hints(directive).iter().any(|hint| is_name(&hint.text))
}

impl Statements<'_> {
    /// The calls for all hints of a directive.
    pub(crate) fn hints(&mut self, directive: &Directive, node: Node<'_>) -> Result<String, Refusal> {
        let mut calls = String::new();
        for hint in hints(directive) {
            let call = match hint.text.strip_prefix(DEGREE).filter(|rest| rest.trim_start().starts_with('(')) {
                Some(_) => self.degree(hint)?,
                None if hint.text.ends_with(']') => self.elements(hint, node)?,
                None if is_name(&hint.text) => self.structs(hint, node)?,
                None => return self.refuse(hint, FORMS),
            };
            calls += &format!("{call} ");
        }
        Ok(calls)
    }

    /// That this was added, if anything is added in this source.
    fn check_added(&self, name: &Part) -> Result<(), Refusal> {
        match self.added.is_empty() || self.added.contains(&name.text) {
            true => Ok(()),
            false => {
                let known = self.added.join(", ");
                self.refuse(
                    name,
                    format!("`{}` was not added by add_head, so no hint can name it; there is {known}", name.text),
                )
            }
        }
    }

    /// Elements of an array, as in sections of OpenMP.
    fn elements(&self, hint: &Part, node: Node<'_>) -> Result<String, Refusal> {
        let (array, Some(section)) = split(self.source, hint) else { return self.refuse(hint, FORMS) };
        self.check_added(&array)?;
        let [first, count] = <[Part; 2]>::try_from(self.separated(&section, b':')).or_else(|_| {
            let message = "which elements? Write `[FIRST : COUNT]`, and an expression with `?` in parentheses";
            self.refuse(&section, message)
        })?;
        let text = &array.text;
        // Numbers are counted, also where elements are rows of them.
        let derived = self.declared(text, node).map(|ty| ty.derived).unwrap_or_default();
        let rows = derived.iter().skip(1).take_while(|it| **it == Derived::Array).count();
        let each = match rows {
            0 => String::new(),
            rows => format!(" * (sizeof ({text})[0] / sizeof ({text}){})", "[0]".repeat(rows + 1)),
        };
        Ok(format!(
            "NVCP_HINT_ELEMENTS(\"{}\", ({first}){each}, ({count}){each});",
            named(text),
            first = first.text,
            count = count.text
        ))
    }

    /// Elements of nodes with many edges.
    fn degree(&self, hint: &Part) -> Result<String, Refusal> {
        let open = hint.text.find('(').unwrap_or_default();
        let inside = part(self.source, hint.range.start + open + 1..hint.range.end - 1);
        let needed =
            "an array, the offsets of its nodes and the least degree are needed: `degree(ranks, offsets, 100)`";
        let parts = self.separated(&inside, b',');
        let [array, offsets, least] = match (hint.text.ends_with(')'), <[Part; 3]>::try_from(parts)) {
            (true, Ok(parts)) => parts,
            _ => return self.refuse(hint, needed),
        };
        self.check_added(&array)?;
        self.check_added(&offsets)?;
        Ok(format!("NVCP_HINT_DEGREE(\"{}\", \"{}\", {});", named(&array.text), named(&offsets.text), least.text))
    }

    /// Structs of which a function says that they are about to change.
    fn structs(&mut self, hint: &Part, node: Node<'_>) -> Result<String, Refusal> {
        let name = &hint.text;
        let Some(key) = self.parameter_of(name, node) else {
            let message = format!(
                "`{name}` is no function that is declared before this one with one parameter, a pointer to an annotated struct; {FORMS}"
            );
            return self.refuse(hint, message);
        };
        let Some(index) = self.described.index(&key) else {
            return self.refuse(hint, format!("`{name}` is a function of a {key}, which is not annotated; put `#pragma nvcp` before its definition"));
        };
        let function = format!("nvcp_hint_{}", self.functions.len());
        let text = format!("static int {function}(void *it) {{ return {name}(it) != 0; }}\n");
        self.functions.push((top(node).start_byte(), text));
        Ok(format!("NVCP_HINT_STRUCTS({index}, {function});"))
    }

    /// The struct that a function has a pointer to as its only parameter.
    fn parameter_of(&self, name: &str, node: Node<'_>) -> Option<String> {
        let end = top(node).start_byte();
        let (source, list) = self.sources.iter().enumerate().find_map(|(number, source)| {
            let end = if number == 0 { end } else { usize::MAX };
            parameters_of(source, name, end).map(|list| (source, list))
        })?;
        let all: Vec<Node<'_>> = list.named_children(&mut list.walk()).filter(|it| it.kind() != "comment").collect();
        let [only] = all[..] else { return None };
        let base = self.types.base(source, only.child_by_field_name("type")?);
        let derived = declarators(source, only).into_iter().map(|(_, _, derived)| derived).next();
        // Without a name, the grammar has another word for it.
        let derived = derived.or_else(|| {
            let is_pointer = only.child_by_field_name("declarator")?.kind() == "abstract_pointer_declarator";
            is_pointer.then(|| vec![Derived::Pointer])
        });
        let ty = self.types.resolve(&Type { base, derived: derived.unwrap_or_default() });
        match (ty.base, &ty.derived[..]) {
            (Base::Struct(key), [Derived::Pointer]) => Some(key),
            _ => None,
        }
    }

    /// The parts between separators that are in no parentheses.
    fn separated(&self, whole: &Part, separator: u8) -> Vec<Part> {
        let (mut depth, mut start, mut parts) = (0, whole.range.start, Vec::new());
        for at in whole.range.clone() {
            match self.source.bytes[at] {
                b'(' | b'[' => depth += 1,
                b')' | b']' => depth -= 1,
                byte if byte == separator && depth == 0 => {
                    parts.push(part(self.source, start..at));
                    start = at + 1;
                }
                _ => {}
            }
        }
        parts.push(part(self.source, start..whole.range.end));
        parts.retain(|part| !part.text.is_empty());
        parts
    }
}

/// The parameters of a function that is declared at file scope before `end`.
fn parameters_of<'a>(source: &'a Source, name: &str, end: usize) -> Option<Node<'a>> {
    let mut waiting = vec![source.tree.root_node()];
    while let Some(around) = waiting.pop() {
        for it in around.named_children(&mut around.walk()).filter(|it| it.start_byte() < end) {
            match it.kind() {
                "declaration" | "function_definition" => {
                    let declared = declarators(source, it).into_iter().find(|(declared, ..)| declared == name);
                    if let Some(list) = declared.and_then(|(_, at, _)| parameters(at)) {
                        return Some(list);
                    }
                }
                kind if is_file_scope(kind) || kind.starts_with("preproc") => waiting.push(it),
                _ => {}
            }
        }
    }
    None
}
