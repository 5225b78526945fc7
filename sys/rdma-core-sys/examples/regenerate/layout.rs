//! The layout of every struct and union: names for the comparison with C, and the C compiler's values at
//! generation.

use std::collections::HashMap;

use quote::{format_ident, quote};
use syn::{Fields, FieldsNamed, Ident, Item, Type};

use crate::Error;
use crate::headers::Roots;
use crate::probe;

/// Names of fields that are keywords of Rust, to which bindgen appends an underscore.
const KEYWORDS: [&str; 3] = ["type", "priv", "match"];

/// A struct or union of the bindings.
struct Composite<'a> {
    is_union: bool,
    fields: &'a FieldsNamed,
}

/// A field with its name in C, and its path through the types that bindgen made for unnamed members.
struct Path {
    c: String,
    steps: Vec<(Ident, bool, Ident)>,
}

/// Returns the text of `layout.rs`.
pub(crate) fn render(types: &syn::File, roots: &Roots) -> Result<String, Error> {
    let composites = composites(types);
    let mut names: Vec<&Ident> = composites.keys().copied().collect();
    names.sort_unstable();
    let mut described = Vec::new();
    for name in names {
        if name.to_string().contains("__bindgen_ty_") {
            continue;
        }
        let keyword = if composites[name].is_union { "union" } else { "struct" };
        let mut paths = Vec::new();
        walk(&composites, name, "", &[], &mut paths);
        described.push((name.clone(), format!("{keyword} {name}"), paths));
    }
    let asked: Vec<(String, Vec<String>)> = described
        .iter()
        .map(|(_, c, paths)| (c.clone(), paths.iter().map(|path| path.c.clone()).collect()))
        .collect();
    let answers = probe::ask_c(&asked, &roots.include_arguments(), &roots.scratch())?;
    Ok(prettyplease::unparse(&write(&described, &answers)?))
}

fn composites(types: &syn::File) -> HashMap<&Ident, Composite<'_>> {
    let mut found = HashMap::new();
    for item in &types.items {
        let (name, is_union, fields) = match item {
            Item::Struct(it) => match &it.fields {
                Fields::Named(fields) => (&it.ident, false, fields),
                _ => continue,
            },
            Item::Union(it) => (&it.ident, true, &it.fields),
            _ => continue,
        };
        let is_opaque = fields
            .named
            .iter()
            .any(|field| field.ident.as_ref().is_some_and(|it| it == "_unused" || it == "_address"));
        if !is_opaque && !name.to_string().starts_with("__Bindgen") {
            found.insert(name, Composite { is_union, fields });
        }
    }
    found
}

/// Collects every field that C can name, those of unnamed members included.
fn walk(
    all: &HashMap<&Ident, Composite<'_>>,
    name: &Ident,
    c: &str,
    steps: &[(Ident, bool, Ident)],
    out: &mut Vec<Path>,
) {
    let composite = &all[name];
    for field in &composite.fields.named {
        let Some(ident) = &field.ident else { continue };
        let text = ident.to_string();
        if text.starts_with("_bitfield_") || text.starts_with("__bindgen_padding") {
            continue;
        }
        let mut steps = steps.to_vec();
        steps.push((name.clone(), composite.is_union, ident.clone()));
        let is_unnamed = text.starts_with("__bindgen_anon_");
        let spelled = text.strip_prefix("r#").unwrap_or(&text);
        let spelled = spelled.strip_suffix('_').filter(|it| KEYWORDS.contains(it)).unwrap_or(spelled);
        let path = if c.is_empty() { spelled.to_string() } else { format!("{c}.{spelled}") };
        let inner = match &field.ty {
            Type::Path(ty) => ty.path.get_ident().filter(|it| it.to_string().contains("__bindgen_ty_")),
            _ => None,
        };
        let inner = inner.filter(|it| all.contains_key(it));
        if !is_unnamed {
            out.push(Path { c: path.clone(), steps: steps.clone() });
        }
        if let Some(inner) = inner {
            walk(all, inner, if is_unnamed { c } else { &path }, &steps, out);
        }
    }
}

fn write(described: &[(Ident, String, Vec<Path>)], answers: &[probe::Answer]) -> Result<syn::File, Error> {
    let mut layouts = Vec::new();
    let mut asserts = Vec::new();
    for ((name, c, paths), answer) in described.iter().zip(answers) {
        let (size, align) = (answer.size, answer.align);
        asserts.push(quote!(const_assert_eq!(size_of::<#name>(), #size);));
        asserts.push(quote!(const_assert_eq!(align_of::<#name>(), #align);));
        let mut fields = Vec::new();
        for (path, offset) in paths.iter().zip(&answer.offsets) {
            let offset_of = path.steps.iter().map(|(ty, is_union, field)| {
                let macro_name =
                    if *is_union { format_ident!("offset_of_union") } else { format_ident!("offset_of") };
                quote!(#macro_name!(#ty, #field))
            });
            let offset_of = quote!(#(#offset_of)+*);
            let c = &path.c;
            asserts.push(quote!(const_assert_eq!(#offset_of, #offset);));
            fields.push(quote!((#c, #offset_of)));
        }
        layouts.push(quote!(Layout {
            name: #c,
            size: size_of::<#name>(),
            align: align_of::<#name>(),
            fields: &[#(#fields),*]
        }));
    }
    Ok(syn::parse2(quote! {
        use memoffset::{offset_of, offset_of_union};

        use crate::Layout;
        use crate::bindings::*;

        /// The layout of every struct and union here, under its name in C: to compare with what C says.
        pub const LAYOUTS: &[Layout] = &[#(#layouts),*];

        /// What C said where the bindings were made.
        #[cfg(target_arch = "x86_64")]
        mod asserted {
            use memoffset::{offset_of, offset_of_union};
            use static_assertions::const_assert_eq;

            use crate::bindings::*;

            #(#asserts)*
        }
    })?)
}
