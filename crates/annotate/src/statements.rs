//! What directives inside functions, and `init`, become.

use tree_sitter::Node;

use crate::{
    Edit, Refusal, Source,
    describe::{Described, quoted},
    directive::{Directive, Part, What, part},
    is_file_scope,
    types::{Base, Derived, Type, Types, declarators},
};

/// The name of what `init` makes.
const HEAD: &str = "head";

/// Turns directives into changes of the text.
pub(crate) struct Statements<'a> {
    pub(crate) sources: &'a [Source],
    pub(crate) source: &'a Source,
    pub(crate) types: &'a Types,
    pub(crate) described: &'a Described,
    /// What `add_head` names.
    pub(crate) added: Vec<String>,
    has_init: bool,
    pub(crate) edits: Vec<Edit>,
    /// Functions that are needed, and before which declaration.
    pub(crate) functions: Vec<(usize, String)>,
}

impl<'a> Statements<'a> {
    /// The first of the sources is translated.
    pub(crate) fn new(sources: &'a [Source], types: &'a Types, described: &'a Described, added: Vec<String>) -> Self {
        let (edits, functions) = (Vec::new(), Vec::new());
        Self { sources, source: &sources[0], types, described, added, has_init: false, edits, functions }
    }

    pub(crate) fn add(&mut self, directive: &Directive, node: Node<'_>) -> Result<(), Refusal> {
        let text = match directive.what {
            What::Struct => String::new(),
            What::Init => self.init(directive, node)?,
            _ => {
                self.check_place(directive, node)?;
                match directive.what {
                    What::AddHead => self.add_head(directive, node)?,
                    What::Persistent => {
                        let hints = self.hints(directive, node)?;
                        self.instead_of(directive, node, &format!("{hints}NVCP_PERSIST();"))?
                    }
                    What::Restore => {
                        if let Some(more) = directive.arguments().get(2) {
                            return self.refuse(more, "this is one argument too many");
                        }
                        self.instead_of(directive, node, "NVCP_RESTORE();")?
                    }
                    _ => self.in_loop(directive, node)?,
                }
            }
        };
        // Lines that were continued stay lines.
        let lines = self.source.bytes[directive.range.clone()].iter().filter(|byte| **byte == b'\n').count();
        self.edits.push(Edit { range: directive.range.clone(), text: text + &"\n".repeat(lines) });
        Ok(())
    }

    pub(crate) fn refuse<T>(&self, part: &Part, message: impl Into<String>) -> Result<T, Refusal> {
        Err(Refusal::at(self.source, part.range.clone(), message))
    }

    /// That a statement can stand here.
    fn check_place(&self, directive: &Directive, node: Node<'_>) -> Result<(), Refusal> {
        let parent = node.parent().map_or("", |parent| parent.kind());
        // Without braces, the directive would become the statement of an `if` or a loop.
        let mut before = node.prev_named_sibling();
        while let Some(it) = before.filter(|it| it.child_count() > 0) {
            before = it.child(it.child_count() - 1);
        }
        match matches!(parent, "compound_statement" | "case_statement") && !before.is_some_and(|it| it.is_missing()) {
            true => Ok(()),
            false => {
                let message = "this directive stands for a statement; put it between the statements of a function, inside \
                               braces";
                Err(self.source.misplaced(directive.range.clone(), message))
            }
        }
    }

    /// The definition of the head.
    fn init(&mut self, directive: &Directive, node: Node<'_>) -> Result<String, Refusal> {
        let word = &directive.clauses[0].word;
        let parent = node.parent().map_or("", |parent| parent.kind());
        // What the grammar does not understand elsewhere is at file scope here all the same.
        if !parent.starts_with("preproc") && !is_file_scope(parent) {
            return Err(self.source.misplaced(word.range.clone(), "`init` stands outside of functions"));
        }
        if std::mem::replace(&mut self.has_init, true) {
            return self.refuse(word, "there is one `init` in a program; add all structures to its head");
        }
        let arguments = directive.arguments();
        let (kind, versions, block) = match arguments {
            [kind] => (kind, None, None),
            [kind, versions] => (kind, Some(versions), None),
            [kind, versions, block] => (kind, Some(versions), Some(block)),
            _ => return self.refuse(word, "`init` has a kind, versions, and a block size: `init(array, 2, 65536)`"),
        };
        if !["array", "quadtree", "octree", "graph"].contains(&kind.text.as_str()) {
            return self.refuse(kind, format!("`{}` is not array, quadtree, octree or graph", kind.text));
        }
        if let Some(block) = block.filter(|_| kind.text != "array") {
            return self.refuse(block, "only arrays have a block size");
        }
        let stem = std::path::Path::new(&self.source.name).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let mtbf = directive.clauses[1..].iter().find(|clause| clause.word.text == "mtbf");
        let mtbf = match mtbf.map(|clause| (clause, clause.arguments.as_slice())) {
            None => "0",
            Some((_, [seconds])) => &seconds.text,
            Some((clause, _)) => return self.refuse(&clause.word, "seconds are needed, as in `mtbf(3600)`"),
        };
        let ranks = directive.clauses[1..].iter().find(|clause| clause.word.text == "ranks");
        let (functions, ranks) = match ranks.map(|clause| (clause, clause.arguments.as_slice())) {
            None => (String::new(), "NULL"),
            Some((_, [communicator])) => (format!("NVCP_RANKS({}) ", communicator.text), "&nvcp_ranks_here"),
            Some((clause, _)) => {
                return self.refuse(&clause.word, "a communicator is needed, as in `ranks(MPI_COMM_WORLD)`");
            }
        };
        Ok(format!(
            "{functions}nvcp_state nvcp_head = {{NULL, \"{}.pool\", {}, {}, {mtbf}, {ranks}, {{0, 0}}}};",
            quoted(&stem.unwrap_or_default()),
            versions.map_or("2", |versions| &versions.text),
            block.map_or("0", |block| &block.text),
        ))
    }

    /// That the first argument is the head.
    fn check_head(&self, directive: &Directive) -> Result<(), Refusal> {
        match directive.arguments().first() {
            Some(head) if head.text == HEAD => Ok(()),
            Some(head) => self.refuse(head, "what `init` makes is called `head`"),
            None => self.refuse(&directive.clauses[0].word, "`head` is needed, as in `persistent(head)`"),
        }
    }

    /// A call, in place of the call of a function if one is named.
    fn instead_of(&mut self, directive: &Directive, node: Node<'_>, call: &str) -> Result<String, Refusal> {
        self.check_head(directive)?;
        let function = directive.arguments().get(1).filter(|it| !["0", "NULL"].contains(&it.text.as_str()));
        let Some(function) = function else { return Ok(call.to_owned()) };
        let mut before = node.prev_named_sibling();
        while let Some(it) = before {
            before = match it.kind() {
                "comment" => it.prev_named_sibling(),
                // To the grammar, a directive ends the statements of a case.
                "case_statement" | "labeled_statement" => it.named_children(&mut it.walk()).last(),
                _ => break,
            };
        }
        let statement = before.filter(|node| node.kind() == "expression_statement");
        let called = statement.and_then(|node| node.named_child(0)).filter(|node| node.kind() == "call_expression");
        let name = called.and_then(|node| node.child_by_field_name("function")).map(|node| self.source.text(node));
        let Some(statement) = statement.filter(|_| name.as_deref() == Some(&function.text)) else {
            let message = format!(
                "the statement before this is no call of {0}, which is to be replaced; put the directive behind `{0}(...);`, or \
                 name no function",
                function.text
            );
            return self.refuse(function, message);
        };
        // A function that nobody calls any more is a warning.
        let used = if self.is_static(&function.text) { format!("(void){};", function.text) } else { String::new() };
        let lines = self.source.bytes[statement.byte_range()].iter().filter(|byte| **byte == b'\n').count();
        self.edits.push(Edit { range: statement.byte_range(), text: used + &"\n".repeat(lines) });
        Ok(call.to_owned())
    }

    /// Whether this source has a static function of this name.
    fn is_static(&self, name: &str) -> bool {
        let is_it = |node: Node<'_>| {
            let declares = declarators(self.source, node).iter().any(|(declared, ..)| declared == name);
            let is_word = |it: Node<'_>| it.kind() == "storage_class_specifier" && self.source.text(it) == "static";
            declares && node.named_children(&mut node.walk()).any(is_word)
        };
        let root = self.source.tree.root_node();
        root.named_children(&mut root.walk()).any(is_it)
    }

    /// A call at the end of each iteration, also of those that are continued: between an iteration
    /// and the condition of the next.
    fn in_loop(&mut self, directive: &Directive, node: Node<'_>) -> Result<String, Refusal> {
        const CALL: &str = "NVCP_POTENTIALLY_PERSIST()";
        self.check_head(directive)?;
        let mut next = node.next_named_sibling();
        while let Some(it) = next {
            next = match it.kind() {
                "comment" => it.next_named_sibling(),
                "labeled_statement" => it.named_children(&mut it.walk()).last(),
                _ => break,
            };
        }
        let word = &directive.clauses[0].word;
        let Some(next) = next else { return self.refuse(word, "a loop is to follow this directive") };
        let mut insert = |at: usize, text: String| self.edits.push(Edit { range: at..at, text });
        match next.kind() {
            "for_statement" => match next.child_by_field_name("update") {
                Some(update) => insert(update.end_byte(), format!(", {CALL}")),
                None => {
                    let close = next.children(&mut next.walk()).filter(|child| child.kind() == ")").last();
                    insert(close.map_or(next.start_byte(), |close| close.start_byte()), format!(" {CALL}"));
                }
            },
            "while_statement" => {
                let Some(condition) = next.child_by_field_name("condition") else {
                    return self.refuse(word, "the loop is not understood");
                };
                insert(condition.start_byte() + 1, "; ".to_owned());
                insert(condition.end_byte() - 1, format!("; {CALL}"));
                let keyword = next.start_byte();
                self.edits.push(Edit { range: keyword..keyword + "while".len(), text: "for".to_owned() });
            }
            "do_statement" => {
                let Some(condition) = next.child_by_field_name("condition") else {
                    return self.refuse(word, "the loop is not understood");
                };
                insert(condition.start_byte() + 1, format!("{CALL}, "));
            }
            _ => return self.refuse(word, "a loop is to follow this directive: for, while or do"),
        }
        Ok(String::new())
    }

    /// Calls that say what is to be kept.
    fn add_head(&mut self, directive: &Directive, node: Node<'_>) -> Result<String, Refusal> {
        let arguments = directive.arguments();
        if arguments.is_empty() {
            let message =
                "what is to be kept? `add_head(a[n * n], step)` for arrays and numbers, `add_head(root)` for trees";
            return self.refuse(&directive.clauses[0].word, message);
        }
        let calls: Result<Vec<String>, Refusal> = arguments.iter().map(|it| self.kept(it, node)).collect();
        Ok(calls?.join(" "))
    }

    /// The call for one thing that is to be kept.
    fn kept(&self, argument: &Part, node: Node<'_>) -> Result<String, Refusal> {
        let (data, count) = split(self.source, argument);
        let text = &data.text;
        let name = named(text);
        let ty = self.declared(text, node);
        let element = |depth: usize| format!("({text}){}", "[0]".repeat(depth));
        let call = |data: String, element: String, count: String| {
            Ok(format!("NVCP_ADD(\"{name}\", {data}, {element}, {count});"))
        };
        let derived = ty.as_ref().map_or(&[][..], |ty| &ty.derived[..]);
        let arrays = derived.iter().take_while(|it| **it == Derived::Array).count();
        let is_struct = |ty: &Type| matches!(&ty.base, Base::Struct(key) if self.described.has(key));
        match (count, derived) {
            (Some(count), [Derived::Pointer, more @ ..] | [Derived::Array, more @ ..]) => {
                let more = more.iter().take_while(|it| **it == Derived::Array).count();
                let (row, number) = (element(1), element(1 + more));
                call(text.clone(), number.clone(), format!("({}) * (sizeof {row} / sizeof {number})", count.text))
            }
            (Some(count), []) if ty.is_none() => call(text.clone(), element(1), format!("({})", count.text)),
            (Some(count), _) => self.refuse(&count, format!("`{text}` is neither a pointer nor an array")),
            (None, [Derived::Pointer]) if ty.as_ref().is_some_and(is_struct) => {
                call(format!("&({text})"), text.clone(), "1".to_owned())
            }
            (None, [Derived::Pointer, ..]) => match ty.as_ref().map(|ty| &ty.base) {
                Some(Base::Struct(key)) if derived.len() == 1 => self.refuse(
                    &data,
                    format!(
                        "`{text}` leads to a {key}, which is not annotated; put `#pragma nvcp` before its definition"
                    ),
                ),
                _ => self.refuse(
                    &data,
                    format!("`{text}` is a pointer; say how many elements it leads to: `add_head({text}[COUNT])`"),
                ),
            },
            (None, [Derived::Function, ..]) => self.refuse(&data, format!("`{text}` is a function")),
            (None, [Derived::Array, ..]) => {
                let number = element(arrays);
                call(text.clone(), number.clone(), format!("sizeof ({text}) / sizeof {number}"))
            }
            (None, []) => call(format!("&({text})"), text.clone(), "1".to_owned()),
        }
    }

    /// The type of a variable, as far as this source says it.
    pub(crate) fn declared(&self, name: &str, node: Node<'_>) -> Option<Type> {
        let mut around = Some(node);
        while let Some(node) = around {
            if let Some(ty) = self.declared_by(name, node) {
                return Some(ty);
            }
            let mut before = node.prev_named_sibling();
            while let Some(it) = before {
                // What another function or loop declares ends with it.
                if let Some(ty) =
                    Some(it).filter(|it| it.kind() == "declaration").and_then(|it| self.declared_by(name, it))
                {
                    return Some(ty);
                }
                before = it.prev_named_sibling();
            }
            around = node.parent();
        }
        None
    }

    /// The type of a variable if this node declares it: by a declaration, in the head of a loop, or
    /// as a parameter of a function.
    pub(crate) fn declared_by(&self, name: &str, node: Node<'_>) -> Option<Type> {
        let inner = match node.kind() {
            "declaration" | "parameter_declaration" => {
                let (_, _, derived) =
                    declarators(self.source, node).into_iter().find(|(declared, ..)| declared == name)?;
                let base = self.types.base(self.source, node.child_by_field_name("type")?);
                let mut ty = self.types.resolve(&Type { base, derived });
                if let (true, Some(first)) = (node.kind() == "parameter_declaration", ty.derived.first_mut())
                    && *first == Derived::Array
                {
                    *first = Derived::Pointer;
                }
                return Some(ty);
            }
            "for_statement" => node.child_by_field_name("initializer")?,
            "function_definition" if declarators(self.source, node).iter().any(|(declared, ..)| declared == name) => {
                return Some(Type { base: Base::Void, derived: vec![Derived::Function] });
            }
            "function_definition" => parameters(node.child_by_field_name("declarator")?)?,
            _ => return None,
        };
        match inner.kind() {
            "parameter_list" => inner.named_children(&mut inner.walk()).find_map(|it| self.declared_by(name, it)),
            _ => self.declared_by(name, inner),
        }
    }
}

/// The name that the pool has for an expression: names of the pool are names of files, when they
/// are exported.
pub(crate) fn named(text: &str) -> String {
    quoted(&text.chars().filter(|it| !it.is_whitespace() && *it != '/').collect::<String>())
}

/// The parameters in a declarator of a function.
pub(crate) fn parameters(node: Node<'_>) -> Option<Node<'_>> {
    node.child_by_field_name("parameters").or_else(|| parameters(node.child_by_field_name("declarator")?))
}

/// What is kept, and its number of elements: what stands in the last brackets.
pub(crate) fn split(source: &Source, argument: &Part) -> (Part, Option<Part>) {
    let bytes = &source.bytes[argument.range.clone()];
    if !bytes.ends_with(b"]") {
        return (argument.clone(), None);
    }
    let mut depth = 0;
    for (at, byte) in bytes.iter().enumerate().rev() {
        match byte {
            b']' | b')' => depth += 1,
            b'[' | b'(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let (start, end) = (argument.range.start, argument.range.end);
            return (part(source, start..start + at), Some(part(source, start + at + 1..end - 1)));
        }
    }
    (argument.clone(), None)
}
