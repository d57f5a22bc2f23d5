//! What cannot be kept is refused where it is written, with what to write instead.

use std::path::Path;

use outcrop_annotate::translate;

fn refused(text: &str) -> Vec<String> {
    let refusals = translate(Path::new("a.c"), text.as_bytes()).expect_err(text);
    refusals.iter().map(ToString::to_string).collect()
}

/// Sources in which `MEMBER` is a member of an annotated struct, and what is said of it.
const MEMBERS: [(&str, &str, &str); 18] = [
    (
        "",
        "int (*compare)(int);",
        "`compare` is a function, whose address is another one in the next run; leave it out by `skip(compare)`",
    ),
    ("", "void *data;", "how many elements does `data` lead to? Write `#pragma nvcp length(data, COUNT)`"),
    ("", "double *values;", "how many elements does `values` lead to?"),
    ("", "char *name;", "Write `#pragma nvcp text(name)` before the struct if it ends with a zero byte"),
    ("", "union { int a; char *b; } either;", "nothing says when it is valid; write `tag(KIND, either.a = VALUE)`"),
    ("tag(x, either.a = 1)", "union { int a; int *b; } either;", "write `tag(KIND, either.b = VALUE)`"),
    ("tag(x, either.b = 1)", "union { double *b; } either;", "how many elements does `either.b` lead to?"),
    ("", "union Value *values;", "`values` has unions of which the definition is not here, or several"),
    ("", "FILE *file;", "`file` leads to a FILE, which is not defined here"),
    ("", "struct Other *other;", "`other` leads to a struct Other, which is not annotated"),
    ("", "struct Other other;", "struct Other is not annotated; put `#pragma nvcp` before its definition"),
    ("", "int bits : 3;", "`bits` is a bit-field"),
    ("", "double values[];", "`values` has no length; make it a pointer"),
    ("length(rows, 3)", "double **rows;", "`rows` leads to pointers or arrays whose lengths nothing says"),
    ("link(values)", "double *values;", "`values` leads to no struct"),
    ("text(values)", "double *values;", "`values` is no text"),
    ("length(x, 3)", "int unused;", "`x` is no pointer"),
    ("", "\n#ifdef A\nint a;\n#endif\n", "what is conditional inside a struct cannot be kept"),
];

#[test]
fn members_that_cannot_be_kept_are_refused() {
    for (hints, member, message) in MEMBERS {
        let text = format!(
            "#include <stdio.h>\nstruct Other {{ int a; }};\n#pragma nvcp {hints}\nstruct Cell {{ int x; {member} }};\n\
             #pragma nvcp init(octree, 2)\nvoid f(struct Cell *root) {{\n#pragma nvcp add_head(root)\n}}\n"
        );
        let said = refused(&text);
        assert!(said[0].contains(message), "{member}: {said:?}");
        assert!(said[0].contains("a.c:4:") || said[0].contains("a.c:5:") || said[0].contains("a.c:6:"), "{said:?}");
    }
}

/// Directives in a function `void f(double *a, int n)`, and what is said of them.
const STATEMENTS: [(&str, &str); 27] = [
    ("add_head(a)", "a.c:3:23: error: `a` is a pointer; say how many elements it leads to: `add_head(a[COUNT])`"),
    ("add_head(n[3])", "`n` is neither a pointer nor an array"),
    ("add_head(s)", "`s` leads to a struct Plain, which is not annotated"),
    ("add_head(f)", "`f` is a function"),
    ("add_head()", "what is to be kept?"),
    ("add_head(n,)", "an argument is missing here"),
    ("add_head(n", "this parenthesis is not closed"),
    ("add_head", "`add_head` needs arguments in parentheses"),
    ("add_heads(n)", "there is no directive `add_heads`"),
    ("persistent()", "`head` is needed"),
    ("persistent(root)", "what `init` makes is called `head`"),
    ("persistent(head, write)", "the statement before this is no call of write"),
    ("persistent(head, g, dram)", "a.c:3:34: error: `dram` is no function that is declared before this one"),
    ("persistent(head, 0, 7)", "a hint is `a[FIRST : COUNT]`"),
    ("persistent(head, 0, a[3])", "a.c:3:36: error: which elements? Write `[FIRST : COUNT]`"),
    ("persistent(head, 0, a[n ? 1 : 2 : 3])", "an expression with `?` in parentheses"),
    ("persistent(head, 0, degree(a, 3))", "an array, the offsets of its nodes and the least degree are needed"),
    ("persistent(head, 0, plain)", "`plain` is a function of a struct Plain, which is not annotated"),
    ("persistent(head, 0, later)", "`later` is no function that is declared before this one"),
    ("persistent(head, 0, two)", "with one parameter, a pointer to an annotated struct"),
    ("restore(head, g, 1)", "this is one argument too many"),
    ("persistent(head) again(1)", "`again` follows a directive that is complete"),
    ("potential_persistent(head)", "a loop is to follow this directive"),
    ("init(array, 2)", "`init` stands outside of functions"),
    ("length(a, n)", "the definition of a struct at file scope is to follow this directive"),
    ("(", "a word is expected here"),
    ("", "the definition of a struct at file scope is to follow this directive"),
];

#[test]
fn directives_that_make_no_sense_are_refused() {
    for (directive, message) in STATEMENTS {
        let text = format!(
            "struct Plain {{ int x; }}; struct Plain *s; void g(void); int plain(const struct Plain *); \
             int two(struct Plain *, int);\nvoid f(double *a, int n) {{ g();\n\
             #pragma nvcp {directive}\n}}\nint later(struct Plain *);\n"
        );
        let said = refused(&text);
        assert!(said[0].contains(message), "{directive}: {said:?}");
        assert!(said[0].starts_with("a.c:3:"), "{said:?}");
    }
    for (text, message) in [
        ("#pragma nvcp init(array, 2) ranks()\n", "a communicator is needed, as in `ranks(MPI_COMM_WORLD)`"),
        ("#pragma nvcp init(list, 2)\n", "`list` is not array, quadtree, octree or graph"),
        ("#pragma nvcp init(octree, 2, 4096)\n", "only arrays have a block size"),
        ("#pragma nvcp init()\n", "`init` has a kind, versions, and a block size"),
        ("#pragma nvcp init(array)\n#pragma nvcp init(array)\n", "there is one `init` in a program"),
        ("void f(int n) {\n  if (n)\n#pragma nvcp persistent(head)\n  n++;\n}\n", "inside braces"),
        (
            "void f(double *a, double *b, int n) {\n#pragma nvcp add_head(a[n])\n#pragma nvcp persistent(head, 0, b[0 : n])\n}\n",
            "a.c:3:34: error: `b` was not added by add_head, so no hint can name it; there is a",
        ),
        ("#pragma nvcp persistent(head)\n", "this directive stands for a statement"),
    ] {
        assert!(refused(text)[0].contains(message), "{text}: {:?}", refused(text));
    }
}

/// What is said of a tag in a struct with a union.
#[test]
fn tags_that_make_no_sense_are_refused() {
    for (tag, message) in [
        ("tag()", "a.c:1:14: error: the member that says it, and a value for each member"),
        ("tag(kind)", "a.c:1:14: error: the member that says it, and a value for each member"),
        ("tag(none, v.a = 1)", "a.c:1:18: error: struct Cell has no integer `none` that could say"),
        ("tag(place, v.a = 1)", "struct Cell has no integer `place` that could say"),
        ("tag(kind, v.a)", "a.c:1:24: error: the member that says it, and a value for each member"),
        ("tag(kind, v.c = 1)", "a.c:1:24: error: struct Cell has no union with a member `v.c`"),
        ("tag(kind, kind = 1)", "struct Cell has no union with a member `kind`"),
        ("tag(kind, v.a = )", "a value follows it"),
    ] {
        let text = format!("#pragma nvcp {tag}\nstruct Cell {{ int kind, *place; union {{ int a; char *b; }} v; }};\n");
        let said = refused(&text);
        assert!(said[0].contains(message), "{tag}: {said:?}");
    }
}

#[test]
fn a_refusal_shows_the_line_with_a_caret() {
    let text = "void f(double *values) {\n\t#pragma nvcp add_head(values)\n}\n";
    let expected = "a.c:2:24: error: `values` is a pointer; say how many elements it leads to: `add_head(values[COUNT])`\n    \
                    2 | \t#pragma nvcp add_head(values)\n      | \t                      ^~~~~~";
    assert_eq!(refused(text), [expected]);
}

#[test]
fn all_refusals_are_said_at_once() {
    let text = "#pragma nvcp\nstruct Cell { void *a; char *b; };\n#pragma nvcp init(graph)\nvoid f(struct Cell *root, int *p) {\n\
                #pragma nvcp add_head(root)\n#pragma nvcp add_head(p)\n}\n";
    assert_eq!(refused(text).len(), 3);
}
