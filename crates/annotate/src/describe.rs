//! The description of annotated structs for the runtime: C that only names members, so that the
//! compiler says where they are and how long.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    ops::Range,
};

use crate::{
    Refusal, Source,
    directive::{Clause, Directive, Part},
    types::{Base, Derived, Field, Struct, Type, Types},
};

/// The structs that are annotated, in the order in which they are described.
#[derive(Debug, Default)]
pub(crate) struct Described {
    keys: Vec<String>,
    hints: Vec<Hints>,
}

/// What the directive before a struct says of its members.
#[derive(Debug, Default)]
struct Hints {
    members: BTreeMap<String, Hint>,
    arms: Vec<Arm>,
}

/// A member of a union, with all that is in it: valid if a tag has a value.
#[derive(Debug)]
struct Arm {
    path: String,
    tag: String,
    value: String,
}

impl Arm {
    fn has(&self, field: &Field) -> bool {
        let rest = field.path.strip_prefix(&self.path);
        field.union.is_some() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// What is said of a member that C does not say.
#[derive(Debug, Clone)]
enum Hint {
    Length(Part),
    Link,
    Skip,
    Text,
}

/// What a member is to the runtime.
enum Member {
    Numbers,
    Structs(usize),
    /// To one struct or several, to numbers, to pointers to structs, or to bytes.
    Pointers(Target),
    Texts,
}

#[derive(Clone, Copy)]
enum Target {
    Struct(usize),
    PointersTo(usize),
    Numbers,
    Bytes,
}

impl Described {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|known| known == key)
    }

    /// The index of the type of a struct in the tables.
    pub(crate) fn index(&self, key: &str) -> Option<usize> {
        self.keys.iter().position(|known| known == key).map(|nth| 2 * nth)
    }

    /// Adds a struct with the directive before it.
    pub(crate) fn add(
        &mut self,
        types: &Types,
        key: &str,
        source: &Source,
        directive: &Directive,
    ) -> Result<(), Refusal> {
        let mut hints = Hints::default();
        let fields = &types.structs[key].fields;
        for clause in &directive.clauses {
            let word = clause.word.text.as_str();
            if word == "tag" {
                hints.arms.extend(arms(key, fields, source, clause)?);
                continue;
            }
            let wanted = if word == "length" { 2 } else { 1 };
            if word == "length" && clause.arguments.len() != wanted || clause.arguments.is_empty() {
                let message = match word {
                    "length" => "a member and its length are needed, as in `length(values, n)`".to_owned(),
                    _ => format!("the name of a member is needed, as in `{word}(parent)`"),
                };
                return Err(Refusal::at(source, clause.word.range.clone(), message));
            }
            let named = if word == "length" { &clause.arguments[..1] } else { &clause.arguments[..] };
            for member in named {
                if !fields.iter().any(|field| field.path == member.text) {
                    let message = format!("{key} has no member `{}`", member.text);
                    return Err(Refusal::at(source, member.range.clone(), message));
                }
                let hint = match word {
                    "length" => Hint::Length(clause.arguments[1].clone()),
                    "link" => Hint::Link,
                    "skip" => Hint::Skip,
                    _ => Hint::Text,
                };
                hints.members.insert(member.text.clone(), hint);
            }
        }
        if !self.has(key) {
            self.keys.push(key.to_owned());
            self.hints.push(hints);
        }
        Ok(())
    }

    /// The tables of all structs, as lines of C.
    pub(crate) fn tables(&self, types: &Types, sources: &[Source]) -> Result<String, Vec<Refusal>> {
        let (mut text, mut table, mut choice, mut refusals) = (String::new(), String::new(), String::new(), Vec::new());
        for (nth, key) in self.keys.iter().enumerate() {
            let it = &types.structs[key];
            match self.fields(types, it, &self.hints[nth], &sources[it.source]) {
                Ok((fields, checks)) => {
                    let name = &it.spelled;
                    let _ = writeln!(text, "{checks}static const outcrop_field nvcp_fields_{nth}[] = {{");
                    let count = fields.len();
                    let _ = writeln!(text, "  {}\n}};", fields.join(",\n  "));
                    let _ = writeln!(
                        text,
                        "static const outcrop_field nvcp_pointer_{nth}[] = {{{{\"pointer\", OUTCROP_POINTERS, 0, 1, 0, \
                         {}, 1, 0, 0, 0, 0}}}};",
                        2 * nth
                    );
                    let _ = writeln!(table, "  {{\"{name}\", sizeof({name}), nvcp_fields_{nth}, {count}}},");
                    let _ = writeln!(table, "  {{\"{name} *\", sizeof({name} *), nvcp_pointer_{nth}, 1}},");
                    let _ = write!(choice, "{name} *: {}, {name} **: {}, ", 2 * nth, 2 * nth + 1);
                }
                Err(refused) => refusals.extend(refused),
            }
        }
        if !refusals.is_empty() {
            return Err(refusals);
        }
        if self.is_empty() {
            return Ok("#define NVCP_TYPES NULL, 0\n#define NVCP_TYPE(x) (-1)\n".to_owned());
        }
        let _ = write!(
            text,
            "static const outcrop_type nvcp_types[] = {{\n{table}}};\n#define NVCP_TYPES nvcp_types, {}\n#define \
             NVCP_TYPE(x) _Generic(&(x), {choice}default: -1)\n",
            2 * self.keys.len()
        );
        Ok(text)
    }

    /// The fields of a struct, and what the compiler is to check.
    fn fields(
        &self,
        types: &Types,
        it: &Struct,
        hints: &Hints,
        source: &Source,
    ) -> Result<(Vec<String>, String), Vec<Refusal>> {
        if let Some((range, what)) = &it.problem {
            return Err(vec![Refusal::at(source, range.clone(), *what)]);
        }
        let (mut fields, mut checks, mut refusals) = (Vec::new(), String::new(), Vec::new());
        for field in it.fields.iter() {
            let hint = hints.members.get(&field.path);
            if matches!(hint, Some(Hint::Skip)) {
                continue;
            }
            let arms: Vec<&Arm> = hints.arms.iter().filter(|arm| arm.has(field)).collect();
            match self.field(types, it, field, hint, &arms) {
                Ok((lines, check)) => {
                    fields.extend(lines);
                    if let Some(check) = check {
                        let line = source.place(field.range.start).0 + 1;
                        let _ = writeln!(checks, "#line {line} \"{}\"\n{check}", quoted(&source.name));
                    }
                }
                Err(message) => refusals.push(Refusal::at(source, field.range.clone(), message)),
            }
        }
        let tags: BTreeSet<&String> = hints.arms.iter().map(|arm| &arm.tag).collect();
        for tag in tags {
            let (spelled, number) = (&it.spelled, format!("NVCP_NUMBER((({} *)0)->{tag})", it.spelled));
            let _ = writeln!(
                checks,
                "_Static_assert({number} >= 0 && {number} <= OUTCROP_I64, \"{tag} of {spelled} is no integer, and cannot be a \
                 tag\");"
            );
        }
        if fields.is_empty() && refusals.is_empty() {
            let range: Range<usize> = it.range.start..it.range.start + 1;
            refusals.push(Refusal::at(source, range, "nothing of this struct can be kept"));
        }
        if refusals.is_empty() { Ok((fields, checks)) } else { Err(refusals) }
    }

    /// The lines of a field, one for each tag with which it is valid, and what the compiler is to
    /// check of it.
    fn field(
        &self,
        types: &Types,
        it: &Struct,
        field: &Field,
        hint: Option<&Hint>,
        arms: &[&Arm],
    ) -> Result<(Vec<String>, Option<String>), String> {
        let (spelled, path) = (&it.spelled, &field.path);
        let member = format!("(({spelled} *)0)->{path}");
        let what = self.member(types, field, hint, !arms.is_empty())?;
        let depth = types.resolve(&field.ty).derived.iter().take_while(|it| **it == Derived::Array).count();
        let element = format!("{member}{}", "[0]".repeat(depth));
        let is_number = |of: &str| {
            // What a union holds was looked at; a compiler sees no more.
            format!(
                "_Static_assert(NVCP_NUMBER({of}) >= 0, \"{path} of {spelled} has a type that is no number, and that is \
                 not defined here: annotate it, or leave it out by skip({path})\");"
            )
        };
        let head = |kind: &str, count: &str, bytes: &str, index: isize, length: &str| {
            let line = format!("\"{path}\", {kind}, offsetof({spelled}, {path}), {count}, {bytes}, {index}, {length}");
            if arms.is_empty() {
                return vec![format!("{{{line}, 0, 0, 0}}")];
            }
            let of = |arm: &&Arm| {
                let Arm { tag, value, .. } = arm;
                let place = format!("offsetof({spelled}, {tag}), sizeof((({spelled} *)0)->{tag})");
                format!("{{{line}, {place}, (uint64_t)({value})}}")
            };
            arms.iter().map(of).collect()
        };
        let whole = format!("sizeof({member})");
        let pointers = format!("sizeof({member}) / sizeof(void *)");
        Ok(match what {
            Member::Numbers => {
                let check = (field.union.is_none() || !arms.is_empty()).then(|| is_number(&element));
                (head("OUTCROP_NUMBERS", "1", &whole, -1, "0, 0"), check)
            }
            Member::Structs(nth) => {
                let count = format!("sizeof({member}) / sizeof({})", types.structs[&self.keys[nth]].spelled);
                (head("OUTCROP_STRUCTS", &count, "0", 2 * nth as isize, "0, 0"), None)
            }
            Member::Texts => (head("OUTCROP_TEXTS", &pointers, "1", -1, "0, 0"), None),
            Member::Pointers(target) => {
                let length = match hint {
                    Some(Hint::Length(length)) if it.fields.iter().any(|other| other.path == length.text) => {
                        format!("offsetof({spelled}, {0}), sizeof((({spelled} *)0)->{0})", length.text)
                    }
                    Some(Hint::Length(length)) => format!("{}, 0", length.text),
                    _ => "1, 0".to_owned(),
                };
                let kind = if matches!(hint, Some(Hint::Link)) { "OUTCROP_LINKS" } else { "OUTCROP_POINTERS" };
                let (bytes, index) = match target {
                    Target::Struct(nth) => ("0".to_owned(), 2 * nth as isize),
                    Target::PointersTo(nth) => ("0".to_owned(), 2 * nth as isize + 1),
                    Target::Numbers => (format!("sizeof(*{element})"), -1),
                    Target::Bytes => ("1".to_owned(), -1),
                };
                let check = matches!(target, Target::Numbers).then(|| is_number(&format!("*{element}")));
                (head(kind, &pointers, &bytes, index, &length), check)
            }
        })
    }

    /// What a member is; or why it cannot be kept, and what to write instead.
    fn member(&self, types: &Types, field: &Field, hint: Option<&Hint>, has_tag: bool) -> Result<Member, String> {
        let path = &field.path;
        let ty = types.resolve(&field.ty);
        let behind: Vec<Derived> = ty.derived.iter().copied().skip_while(|it| *it == Derived::Array).collect();
        check_placed(field, &ty, has_tag)?;
        let annotated = |key: &str| self.keys.iter().position(|known| known == key);
        let is_address = !behind.is_empty();
        match (behind.as_slice(), &ty.base, hint) {
            ([], Base::Struct(key), None) => match annotated(key) {
                Some(nth) => Ok(Member::Structs(nth)),
                None => Err(format!("{key} is not annotated; put `#pragma nvcp` before its definition")),
            },
            ([], Base::Void, _) => Err(format!("`{path}` is not understood")),
            ([], _, None) => Ok(Member::Numbers),
            ([], ..) => Err(format!("`{path}` is no pointer: `length`, `link` and `text` are for pointers")),
            (_, _, _) if behind.contains(&Derived::Function) => Err(format!(
                "`{path}` is a function, whose address is another one in the next run; leave it out by `skip({path})` and set \
                 it again after restore"
            )),
            ([Derived::Pointer], Base::Char, Some(Hint::Text)) => Ok(Member::Texts),
            (_, _, Some(Hint::Text)) => Err(format!("`{path}` is no text; `text` is for char *")),
            ([Derived::Pointer], Base::Struct(key), _) => match annotated(key) {
                Some(nth) => Ok(Member::Pointers(Target::Struct(nth))),
                None => Err(format!(
                    "`{path}` leads to a {key}, which is not annotated; put `#pragma nvcp` before its definition, or leave \
                     the member out by `skip({path})`"
                )),
            },
            (_, _, Some(Hint::Link)) => Err(format!("`{path}` leads to no struct; `link` is for pointers to structs")),
            ([Derived::Pointer, Derived::Pointer], Base::Struct(key), Some(Hint::Length(_))) => match annotated(key) {
                Some(nth) => Ok(Member::Pointers(Target::PointersTo(nth))),
                None => Err(format!("{key} is not annotated; put `#pragma nvcp` before its definition")),
            },
            ([Derived::Pointer], base, Some(Hint::Length(_))) => match base {
                Base::Void => Ok(Member::Pointers(Target::Bytes)),
                _ => Ok(Member::Pointers(Target::Numbers)),
            },
            ([Derived::Pointer], Base::Char, _) => Err(format!(
                "how long is `{path}`? Write `#pragma nvcp text({path})` before the struct if it ends with a zero byte, or \
                 `length({path}, COUNT)`"
            )),
            ([Derived::Pointer], Base::Unknown(name), _) => Err(format!(
                "`{path}` leads to a {name}, which is not defined here; if these are numbers, write `length({path}, COUNT)`; \
                 otherwise leave the member out by `skip({path})`"
            )),
            ([Derived::Pointer, ..], ..) if behind.len() == 1 || matches!(ty.base, Base::Struct(_)) => Err(format!(
                "how many elements does `{path}` lead to? Write `#pragma nvcp length({path}, COUNT)` before the struct; COUNT \
                 is a member, or a constant"
            )),
            _ if is_address => Err(format!(
                "`{path}` leads to pointers or arrays whose lengths nothing says; use a struct for each, or leave the member \
                 out by `skip({path})`"
            )),
            _ => Err(format!("`{path}` cannot be kept; leave it out by `skip({path})`")),
        }
    }
}

/// That the place of a member is known, and when it is valid.
fn check_placed(field: &Field, ty: &Type, has_tag: bool) -> Result<(), String> {
    let path = &field.path;
    if field.is_bits {
        return Err(format!("`{path}` is a bit-field, whose place no C expression says; make it an ordinary member"));
    }
    if field.is_flexible {
        return Err(format!("`{path}` has no length; make it a pointer, with `length({path}, COUNT)`"));
    }
    if matches!(ty.base, Base::Union(_)) {
        return Err(format!(
            "`{path}` has unions of which the definition is not here, or several of them; use a struct with one union, and \
             with a tag"
        ));
    }
    if field.union == Some(true) && !has_tag {
        return Err(format!(
            "`{path}` is in a union with addresses, and nothing says when it is valid; write `tag(KIND, {path} = VALUE)` \
             with the member that says it and its value, or leave it out by `skip({path})` and set it again after restore"
        ));
    }
    Ok(())
}

/// A name of a file, as a text of C.
pub(crate) fn quoted(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"")
}

/// What `tag(KIND, MEMBER = VALUE, ...)` says.
fn arms(key: &str, fields: &[Field], source: &Source, clause: &Clause) -> Result<Vec<Arm>, Refusal> {
    let needed = "the member that says it, and a value for each member of the union are needed, as in `tag(kind, value.number = \
                  NUMBER, value.text = TEXT)`";
    let [tag, arms @ ..] = &clause.arguments[..] else {
        return Err(Refusal::at(source, clause.word.range.clone(), needed));
    };
    let is_tag = |field: &Field| field.path == tag.text && field.ty.derived.is_empty() && !field.is_bits;
    if !fields.iter().any(is_tag) {
        let message = format!("{key} has no integer `{}` that could say which member of the union is valid", tag.text);
        return Err(Refusal::at(source, tag.range.clone(), message));
    }
    if arms.is_empty() {
        return Err(Refusal::at(source, clause.word.range.clone(), needed));
    }
    let arm = |it: &Part| {
        let Some((path, value)) = it.text.split_once('=') else {
            return Err(Refusal::at(source, it.range.clone(), needed));
        };
        let [path, value] = [path, value].map(|text| text.trim().to_owned());
        let arm = Arm { path, tag: tag.text.clone(), value };
        match fields.iter().any(|field| arm.has(field)) && !arm.value.is_empty() {
            true => Ok(arm),
            false => {
                let message =
                    format!("{key} has no union with a member `{}`; a value follows it: `{0} = VALUE`", arm.path);
                Err(Refusal::at(source, it.range.clone(), message))
            }
        }
    };
    arms.iter().map(arm).collect()
}
