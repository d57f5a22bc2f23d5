//! `#[derive(Versioned)]`: elements of pools. `#[persistent]`: loops that persist.

mod persistent;

use proc_macro::TokenStream;
use proc_macro_crate::{FoundCrate, crate_name};
use quote::quote;
use syn::{Data, DeriveInput, Error, Fields, parse_macro_input, spanned::Spanned};

/// Makes a structure an element of pools: all fields must be elements, and there must be no padding
/// between or after them. Offsets are part of the layout that a pool compares when it is opened, so
/// a program that was compiled with another layout is refused.
#[proc_macro_derive(Versioned)]
pub fn versioned(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    implement(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Has loops of a function persist at the end of each iteration, when that is worth it.
///
/// `#[persistent(pool, grid, heat)]` names the pool and all of its structures that are open, as the
/// function names them: variables, parameters or fields, by value or by reference. `#[persist]`
/// before a `for`, `while` or `loop` inside marks it. At the end of its iterations, also of those
/// that `continue` ends, it calls
/// `pool.persist_if_worth_it(&mut [&mut grid, &mut heat])?`. So the function returns a `Result`.
/// What the last iterations did may not be durable when the loop ends: persist the result.
#[proc_macro_attribute]
pub fn persistent(arguments: TokenStream, function: TokenStream) -> TokenStream {
    let expanded = persistent::expand(arguments.into(), function.into(), &pool());
    expanded.unwrap_or_else(Error::into_compile_error).into()
}

fn implement(input: &DeriveInput) -> Result<proc_macro2::TokenStream, Error> {
    let name = &input.ident;
    if !input.generics.params.is_empty() {
        return Err(Error::new(input.generics.span(), "an element of a pool cannot be generic; name its types"));
    }
    let Data::Struct(data) = &input.data else {
        let problem = "only a structure can be an element of a pool: not every pattern of bytes is a valid enum or \
                       union; store an integer of a fixed size instead";
        return Err(Error::new(name.span(), problem));
    };
    let fields: Vec<_> = match &data.fields {
        Fields::Unit => Vec::new(),
        fields => fields.iter().collect(),
    };
    if fields.is_empty() {
        return Err(Error::new(name.span(), "an element of a pool needs at least one field"));
    }
    let types: Vec<_> = fields.iter().map(|field| &field.ty).collect();
    let members: Vec<syn::Member> = data.fields.members().collect();
    let texts: Vec<String> = members
        .iter()
        .map(|member| match member {
            syn::Member::Named(name) => name.to_string(),
            syn::Member::Unnamed(index) => index.index.to_string(),
        })
        .collect();
    let padded = format!("`{name}` has padding, whose bytes mean nothing: reorder its fields or add some");
    let aligned =
        format!("`{name}` is aligned to more than a page of a pool, which is all that its memory is aligned to");
    let pool = pool();
    Ok(quote! {
        // SAFETY: all fields are elements, and the assertion below shows that there is nothing
        // between them. Names, types and offsets of the fields are in the hash.
        unsafe impl #pool::Versioned for #name {
            const LAYOUT: u64 = {
                // By their full names: a program may have macros of its own that are called so.
                ::core::assert!(0 #(+ ::core::mem::size_of::<#types>())* == ::core::mem::size_of::<#name>(), #padded);
                ::core::assert!(::core::mem::align_of::<#name>() <= #pool::layout::ALIGN_MAX, #aligned);
                let hash = #pool::layout::START;
                #(
                    let hash = #pool::layout::hash(hash, #texts.as_bytes());
                    let hash = #pool::layout::hash(
                        hash,
                        &<#types as #pool::Versioned>::LAYOUT.to_le_bytes(),
                    );
                    let hash = #pool::layout::hash(
                        hash,
                        &(::core::mem::offset_of!(#name, #members) as u64).to_le_bytes(),
                    );
                )*
                hash
            };
        }
        const _: u64 = <#name as #pool::Versioned>::LAYOUT;
    })
}

/// Where the program finds the trait: it uses Outcrop, or this part of it alone.
fn pool() -> proc_macro2::TokenStream {
    let named = |name: &str, inside: &str| {
        let path = match crate_name(name).ok()? {
            // Its own examples and tests, where it goes by its own name.
            FoundCrate::Itself => name.replace('-', "_"),
            FoundCrate::Name(path) => path,
        };
        format!("::{path}{inside}").parse().ok()
    };
    named("outcrop-pool", "").or_else(|| named("outcrop", "::pool")).unwrap_or_else(|| quote!(::outcrop_pool))
}
