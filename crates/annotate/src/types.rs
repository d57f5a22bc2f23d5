//! Types as sources declare them: structs and typedefs, and what a declarator makes of a type.

use std::{collections::BTreeMap, ops::Range};

use tree_sitter::Node;

use crate::Source;

/// What a declaration begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Base {
    Number,
    Char,
    Void,
    /// A struct that may be known, by its key.
    Struct(String),
    /// A union that may be known, by its key.
    Union(String),
    /// A type that the source does not define.
    Unknown(String),
}

/// What a declarator adds, from the name outwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Derived {
    Pointer,
    Array,
    Function,
}

/// The type of a name.
#[derive(Debug, Clone)]
pub(crate) struct Type {
    pub(crate) base: Base,
    pub(crate) derived: Vec<Derived>,
}

/// A member of a struct.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    /// As it follows a dot: of members of structs without a name, too.
    pub(crate) path: String,
    pub(crate) ty: Type,
    /// Where it is declared.
    pub(crate) range: Range<usize>,
    pub(crate) is_bits: bool,
    /// Whether an array has no length.
    pub(crate) is_flexible: bool,
    /// Whether a union holds it, and whether that has addresses.
    pub(crate) union: Option<bool>,
}

/// A struct that is defined.
#[derive(Debug)]
pub(crate) struct Struct {
    /// As C names its type.
    pub(crate) spelled: String,
    pub(crate) fields: Vec<Field>,
    /// Which source, and where.
    pub(crate) source: usize,
    pub(crate) range: Range<usize>,
    /// Something in it that is not understood.
    pub(crate) problem: Option<(Range<usize>, &'static str)>,
}

/// All that sources define.
#[derive(Debug, Default)]
pub(crate) struct Types {
    pub(crate) structs: BTreeMap<String, Struct>,
    typedefs: BTreeMap<String, Type>,
    /// The members of unions with a name.
    unions: BTreeMap<String, Vec<Field>>,
}

/// Typedefs lead to each other at most so often.
const DEPTH_MAX: usize = 16;

impl Types {
    /// Adds what a source defines.
    pub(crate) fn add(&mut self, source: &Source, number: usize) {
        self.add_below(source, number, source.tree.root_node());
    }

    fn add_below(&mut self, source: &Source, number: usize, node: Node<'_>) {
        for child in node.named_children(&mut node.walk()) {
            match child.kind() {
                "type_definition" => self.add_typedef(source, number, child),
                "struct_specifier" => drop(self.add_struct(source, number, child, None)),
                "union_specifier" => self.add_union(source, child, None),
                "declaration" => match child.child_by_field_name("type").map(|ty| (ty.kind(), ty)) {
                    Some(("struct_specifier", ty)) => drop(self.add_struct(source, number, ty, None)),
                    Some(("union_specifier", ty)) => self.add_union(source, ty, None),
                    _ => {}
                },
                "preproc_if"
                | "preproc_ifdef"
                | "preproc_else"
                | "preproc_elif"
                | "linkage_specification"
                | "declaration_list"
                | "ERROR" => self.add_below(source, number, child),
                _ => {}
            }
        }
    }

    fn add_typedef(&mut self, source: &Source, number: usize, node: Node<'_>) {
        let Some(ty) = node.child_by_field_name("type") else { return };
        let names = declarators(source, node);
        let plain = names.iter().find(|(_, _, derived)| derived.is_empty()).map(|(name, ..)| name.clone());
        let base = match ty.kind() {
            "struct_specifier" => self.add_struct(source, number, ty, plain.as_deref()),
            "union_specifier" => {
                self.add_union(source, ty, plain.as_deref());
                self.union_of(source, ty).or(plain).map_or(Base::Union(String::new()), Base::Union)
            }
            _ => self.base(source, ty),
        };
        for (name, _, derived) in names {
            self.typedefs.insert(name, Type { base: base.clone(), derived });
        }
    }

    /// Adds a struct if this is its definition.
    fn add_struct(&mut self, source: &Source, number: usize, node: Node<'_>, typedef: Option<&str>) -> Base {
        let tag = node.child_by_field_name("name").map(|tag| format!("struct {}", source.text(tag)));
        let Some(key) = tag.or(typedef.map(str::to_owned)) else { return Base::Unknown("struct".to_owned()) };
        if let Some(body) = node.child_by_field_name("body") {
            let (mut fields, mut problem) = (Vec::new(), None);
            self.fields(source, body, "", None, &mut fields, &mut problem);
            let range = node.byte_range();
            self.structs.insert(key.clone(), Struct { spelled: key.clone(), fields, source: number, range, problem });
        }
        Base::Struct(key)
    }

    /// The key of a union with a name.
    fn union_of(&self, source: &Source, node: Node<'_>) -> Option<String> {
        node.child_by_field_name("name").map(|name| format!("union {}", source.text(name)))
    }

    /// Adds a union if this is its definition.
    fn add_union(&mut self, source: &Source, node: Node<'_>, typedef: Option<&str>) {
        let key = self.union_of(source, node).or(typedef.map(str::to_owned));
        let (Some(key), Some(body)) = (key, node.child_by_field_name("body")) else { return };
        let (mut fields, mut problem) = (Vec::new(), None);
        self.fields(source, body, "", Some(has_addresses(source, body)), &mut fields, &mut problem);
        if problem.is_none() {
            self.unions.insert(key, fields);
        }
    }

    /// The members in a body, with those of bodies inside it that have no name of their own.
    fn fields(
        &mut self,
        source: &Source,
        body: Node<'_>,
        before: &str,
        union: Option<bool>,
        fields: &mut Vec<Field>,
        problem: &mut Option<(Range<usize>, &'static str)>,
    ) {
        for child in body.named_children(&mut body.walk()) {
            match child.kind() {
                "field_declaration" => self.field(source, child, before, union, fields, problem),
                "comment" => {}
                "preproc_call" => {
                    *problem = Some((child.byte_range(), "a directive inside a struct; put it before the struct"));
                }
                kind => {
                    let what = match kind.starts_with("preproc") {
                        true => "what is conditional inside a struct cannot be kept; have it always there",
                        false => "this member is not understood; write it without macros",
                    };
                    *problem = Some((child.byte_range(), what));
                }
            }
        }
    }

    fn field(
        &mut self,
        source: &Source,
        node: Node<'_>,
        before: &str,
        union: Option<bool>,
        fields: &mut Vec<Field>,
        problem: &mut Option<(Range<usize>, &'static str)>,
    ) {
        let Some(ty) = node.child_by_field_name("type") else { return };
        let is_bits = node.named_children(&mut node.walk()).any(|child| child.kind() == "bitfield_clause");
        let names = declarators(source, node);
        let is_inline = ty.child_by_field_name("name").is_none();
        if let Some(body) = ty.child_by_field_name("body").filter(|_| is_inline && ty.kind() != "enum_specifier") {
            let union = union.or((ty.kind() == "union_specifier").then(|| has_addresses(source, body)));
            match names.as_slice() {
                [] => self.fields(source, body, before, union, fields, problem),
                [(name, _, derived)] if derived.is_empty() => {
                    self.fields(source, body, &format!("{before}{name}."), union, fields, problem);
                }
                [(_, node, _), ..] => {
                    let what =
                        "several structs without a name; give the struct a name and put `#pragma nvcp` before it";
                    *problem = Some((node.byte_range(), what));
                }
            }
            return;
        }
        if ty.kind() == "union_specifier" {
            self.add_union(source, ty, None);
        }
        let base = self.base(source, ty);
        for (name, at, derived) in names {
            let resolved = self.resolve(&Type { base: base.clone(), derived: derived.clone() });
            if let (Base::Union(key), []) = (&resolved.base, &resolved.derived[..])
                && let Some(members) = self.unions.get(key)
            {
                fields.extend(members.iter().map(|member| Field {
                    path: format!("{before}{name}.{}", member.path),
                    range: at.byte_range(),
                    union: union.or(member.union),
                    ..member.clone()
                }));
                continue;
            }
            let is_flexible = is_flexible(at);
            let (path, range) = (format!("{before}{name}"), at.byte_range());
            let ty = Type { base: base.clone(), derived };
            fields.push(Field { path, ty, range, is_bits, is_flexible, union });
        }
    }

    /// What a declaration begins with.
    pub(crate) fn base(&self, source: &Source, node: Node<'_>) -> Base {
        let text = source.text(node);
        match node.kind() {
            "primitive_type" if text == "void" => Base::Void,
            "primitive_type" if text == "char" => Base::Char,
            "sized_type_specifier" if text.split_whitespace().any(|word| word == "char") => Base::Char,
            "primitive_type" | "sized_type_specifier" | "enum_specifier" => Base::Number,
            "struct_specifier" => {
                let tag = node.child_by_field_name("name").map(|tag| source.text(tag)).unwrap_or_default();
                Base::Struct(format!("struct {tag}"))
            }
            "union_specifier" => Base::Union(self.union_of(source, node).unwrap_or_default()),
            _ => Base::Unknown(text),
        }
    }

    /// A type without the names that the sources give it.
    pub(crate) fn resolve(&self, ty: &Type) -> Type {
        let mut ty = ty.clone();
        for _ in 0..DEPTH_MAX {
            let Base::Unknown(name) = &ty.base else { break };
            let Some(known) = self.typedefs.get(name) else { break };
            ty.derived.extend(&known.derived);
            ty.base = known.base.clone();
        }
        ty
    }
}

/// The names that a declaration declares, where each declarator is, and what it adds.
pub(crate) fn declarators<'a>(source: &Source, node: Node<'a>) -> Vec<(String, Node<'a>, Vec<Derived>)> {
    let found = node.children_by_field_name("declarator", &mut node.walk()).collect::<Vec<_>>();
    found.into_iter().filter_map(|at| declared(source, at).map(|(name, derived)| (name, at, derived))).collect()
}

/// The name in a declarator, and what this adds to the type.
fn declared(source: &Source, node: Node<'_>) -> Option<(String, Vec<Derived>)> {
    let inner = || {
        let named = node.child_by_field_name("declarator");
        let last = || node.named_children(&mut node.walk()).filter(|child| child.kind() != "comment").last();
        declared(source, named.or_else(last)?)
    };
    let with = |derived: Derived| {
        inner().map(|(name, mut all)| {
            all.push(derived);
            (name, all)
        })
    };
    match node.kind() {
        "identifier" | "field_identifier" | "type_identifier" | "primitive_type" => {
            Some((source.text(node), Vec::new()))
        }
        "pointer_declarator" => with(Derived::Pointer),
        "array_declarator" => with(Derived::Array),
        "function_declarator" => with(Derived::Function),
        "parenthesized_declarator" | "init_declarator" | "attributed_declarator" => inner(),
        _ => None,
    }
}

/// Whether an array has no length.
fn is_flexible(node: Node<'_>) -> bool {
    let is_open = node.kind() == "array_declarator" && node.child_by_field_name("size").is_none();
    is_open || node.child_by_field_name("declarator").is_some_and(is_flexible)
}

/// Whether a body declares addresses, or types that are not numbers for certain.
fn has_addresses(source: &Source, body: Node<'_>) -> bool {
    body.named_children(&mut body.walk()).any(|child| {
        let is_number = child.child_by_field_name("type").is_some_and(|ty| match ty.kind() {
            "primitive_type" | "sized_type_specifier" | "enum_specifier" => true,
            "struct_specifier" | "union_specifier" => {
                ty.child_by_field_name("body").is_some_and(|body| !has_addresses(source, body))
            }
            _ => false,
        });
        let names = declarators(source, child);
        let is_plain = names.iter().all(|(_, _, derived)| derived.iter().all(|it| *it == Derived::Array));
        child.kind() == "field_declaration" && !(is_number && is_plain)
    })
}
