//! `#[persistent]`: loops that persist at the end of each iteration, when it is worth it.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{
    Attribute, Block, Error, Expr, ItemFn, Label, Lifetime, Macro, Meta, Result, ReturnType, Token, Type,
    parse::Parser,
    parse_quote,
    punctuated::Punctuated,
    spanned::Spanned,
    visit_mut::{self, VisitMut},
};

/// The mark of a loop.
const MARK: &str = "persist";

/// The function, with calls in its marked loops. `pool` is where the program finds the library.
pub(crate) fn expand(arguments: TokenStream, function: TokenStream, pool: &TokenStream) -> Result<TokenStream> {
    let span = arguments.span();
    let named = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(arguments)?;
    let mut named = named.into_iter();
    let (Some(which), structures) = (named.next(), named.collect::<Vec<_>>()) else {
        return Err(Error::new(Span::call_site(), "name the pool and its structures: `#[persistent(pool, grid)]`"));
    };
    if structures.is_empty() {
        return Err(Error::new(span, "name all structures of the pool after it: `#[persistent(pool, grid)]`"));
    }
    let mut function: ItemFn = syn::parse2(function)
        .map_err(|error| Error::new(error.span(), format!("`#[persistent]` belongs to a function: {error}")))?;
    let is_empty = |of: &Type| matches!(of, Type::Tuple(tuple) if tuple.elems.is_empty());
    if matches!(&function.sig.output, ReturnType::Default)
        || matches!(&function.sig.output, ReturnType::Type(_, of) if is_empty(of))
    {
        let problem = "persisting can fail: let this function return a `Result` whose error is made from the pool's";
        return Err(Error::new(function.sig.span(), problem));
    }
    let call = quote! {
        {
            use #pool::Structure as _;
            #pool::Pool::persist_if_worth_it(&#which, &mut [#((#structures).as_structure()),*])?;
        }
    };
    let mut marked = Marked { call, loops: 0, problem: None };
    marked.visit_block_mut(&mut function.block);
    match marked.problem {
        Some(problem) => Err(problem),
        None if marked.loops == 0 => {
            let problem = "mark the loop that is to persist: write `#[persist]` before its `for`, `while` or `loop`";
            Err(Error::new(function.sig.ident.span(), problem))
        }
        None => Ok(function.into_token_stream()),
    }
}

/// Finds the marked loops of a function.
struct Marked {
    call: TokenStream,
    loops: usize,
    problem: Option<Error>,
}

impl Marked {
    fn fail(&mut self, problem: Error) {
        match &mut self.problem {
            Some(known) => known.combine(problem),
            None => self.problem = Some(problem),
        }
    }

    /// Takes the mark away, if it is there.
    fn take_mark(&mut self, attributes: &mut Vec<Attribute>) -> bool {
        let Some(at) = attributes.iter().position(|attribute| attribute.path().is_ident(MARK)) else { return false };
        let mark = attributes.remove(at);
        if !matches!(mark.meta, Meta::Path(_)) {
            self.fail(Error::new(mark.span(), "`#[persist]` takes nothing: `#[persistent(...)]` names the structures"));
        }
        true
    }

    /// Has the body of a loop end with the call, also if it is continued before.
    fn rewrite(&mut self, label: &mut Option<Label>, body: &mut Block) {
        self.loops += 1;
        let name = |what: &str| Lifetime::new(&format!("'outcrop_{what}_{}", self.loops), Span::mixed_site());
        let mut jumps = Jumps {
            own: label.as_ref().map(|label| label.name.clone()),
            all: name("loop"),
            iteration: name("iteration"),
            depth: 0,
            is_rewriting: false,
            continues: false,
            problem: None,
        };
        jumps.visit_block_mut(body);
        let call = &self.call;
        if jumps.continues {
            jumps.is_rewriting = true;
            jumps.visit_block_mut(body);
            let (all, iteration) = (&jumps.all, &jumps.iteration);
            label.get_or_insert_with(|| parse_quote!(#all:));
            *body = parse_quote!({ #[allow(unreachable_code)] #iteration: #body #call });
        } else {
            *body = parse_quote!({ #body #[allow(unreachable_code)] #call });
        }
        if let Some(problem) = jumps.problem {
            self.fail(problem);
        }
    }
}

impl VisitMut for Marked {
    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        let (attributes, label, body) = match expr {
            Expr::ForLoop(it) => (&mut it.attrs, &mut it.label, &mut it.body),
            Expr::While(it) => (&mut it.attrs, &mut it.label, &mut it.body),
            Expr::Loop(it) => (&mut it.attrs, &mut it.label, &mut it.body),
            _ => return visit_mut::visit_expr_mut(self, expr),
        };
        if !self.take_mark(attributes) {
            return visit_mut::visit_expr_mut(self, expr);
        }
        // Loops inside first: what is added here is not looked at.
        self.visit_block_mut(body);
        self.rewrite(label, body);
    }

    fn visit_attribute_mut(&mut self, attribute: &mut Attribute) {
        if attribute.path().is_ident(MARK) {
            self.fail(Error::new(attribute.span(), "`#[persist]` marks a `for`, `while` or `loop`"));
        }
    }

    // Functions inside are others.
    fn visit_item_mut(&mut self, _: &mut syn::Item) {}
}

/// Finds what leaves an iteration early, and has it end the iteration instead of skipping the call.
struct Jumps {
    /// The label that the loop has.
    own: Option<Lifetime>,
    /// Labels for the loop, if it has none, and for what an iteration does.
    all: Lifetime,
    iteration: Lifetime,
    /// Loops between the marked one and here.
    depth: usize,
    is_rewriting: bool,
    continues: bool,
    problem: Option<Error>,
}

impl Jumps {
    fn inside(&mut self, expr: &mut Expr) {
        self.depth += 1;
        visit_mut::visit_expr_mut(self, expr);
        self.depth -= 1;
    }
}

impl VisitMut for Jumps {
    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        match expr {
            Expr::Continue(jump) => {
                let is_own = jump.label.as_ref().map_or(self.depth == 0, |label| Some(label) == self.own.as_ref());
                self.continues |= is_own;
                if is_own && self.is_rewriting {
                    let iteration = &self.iteration;
                    *expr = parse_quote!(break #iteration);
                }
            }
            Expr::Break(jump) => {
                if self.is_rewriting && jump.label.is_none() && self.depth == 0 {
                    jump.label = Some(self.own.clone().unwrap_or_else(|| self.all.clone()));
                }
                visit_mut::visit_expr_break_mut(self, jump);
            }
            Expr::ForLoop(_) | Expr::While(_) | Expr::Loop(_) => self.inside(expr),
            // What they jump to is inside them.
            Expr::Closure(_) | Expr::Async(_) | Expr::Const(_) => {}
            _ => visit_mut::visit_expr_mut(self, expr),
        }
    }

    fn visit_macro_mut(&mut self, call: &mut Macro) {
        if !self.is_rewriting && has_continue(call.tokens.clone()) {
            let problem = "this macro may continue the loop before it persists: write `continue` outside of macros";
            self.problem.get_or_insert_with(|| Error::new(call.span(), problem));
        }
    }

    fn visit_item_mut(&mut self, _: &mut syn::Item) {}
}

fn has_continue(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(name) => name == "continue",
        TokenTree::Group(group) => has_continue(group.stream()),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(arguments: &str, function: &str) -> Result<String> {
        let expanded = expand(arguments.parse().unwrap(), function.parse().unwrap(), &quote!(outcrop_pool));
        expanded.map(|tokens| tokens.to_string())
    }

    #[test]
    fn mistakes_have_an_answer() {
        let fine = "fn f() -> R { #[persist] for i in 0..9 {} Ok(()) }";
        assert!(expanded("pool, grid", fine).is_ok());
        for (arguments, function, why) in [
            ("", fine, "name the pool and its structures"),
            ("pool", fine, "name all structures"),
            ("pool, grid", "struct A;", "belongs to a function"),
            ("pool, grid", "fn f() { #[persist] loop {} }", "return a `Result`"),
            ("pool, grid", "fn f() -> () { #[persist] loop {} }", "return a `Result`"),
            ("pool, grid", "fn f() -> R { for i in 0..9 {} Ok(()) }", "mark the loop"),
            ("pool, grid", "fn f() -> R { #[persist] if true {} Ok(()) }", "marks a `for`"),
            ("pool, grid", "fn f() -> R { #[persist] let a = 1; Ok(()) }", "marks a `for`"),
            ("pool, grid", "fn f() -> R { #[persist(a)] loop {} }", "takes nothing"),
            ("pool, grid", "fn f() -> R { #[persist] loop { m! { (continue) } } }", "outside of macros"),
        ] {
            let error = expanded(arguments, function).unwrap_err().to_string();
            assert!(error.contains(why), "{function}: {error}");
        }
    }

    #[test]
    fn only_marked_loops_get_a_call_and_only_their_own_jumps_are_changed() {
        let function = "fn f() -> R {
            for i in 0..2 { if i == 1 { continue; } }
            #[persist]
            for i in 0..9 {
                for j in 0..9 { if j == i { continue; } break; }
                if i == 3 { continue; }
                if i == 5 { break; }
                let f = |n: u32| loop { if n > 1 { break } else { continue } };
            }
            Ok(())
        }";
        let text = expanded("pool, grid, mesh", function).unwrap();
        assert_eq!(text.matches("persist_if_worth_it").count(), 1, "{text}");
        assert_eq!(text.matches("as_structure").count(), 2, "{text}");
        assert_eq!(text.matches("continue").count(), 3, "of the other loops: {text}");
        assert_eq!(text.matches("break 'outcrop_iteration_1").count(), 1, "{text}");
        assert_eq!(text.matches("break 'outcrop_loop_1").count(), 1, "{text}");
        assert!(!text.contains("[persist]") && !text.contains("[ persist ]"), "{text}");
    }
}
