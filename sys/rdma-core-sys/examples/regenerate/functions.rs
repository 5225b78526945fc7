//! Functions: two tables of function pointers, and the code that looks each one up under its version.

use std::collections::HashMap;
use std::process::Command;

use quote::{format_ident, quote};
use syn::ForeignItemFn;

use crate::Error;
use crate::bindings::Parsed;
use crate::headers::Roots;

/// One library: its file, the table's name, the versions that every release in use has, and a description.
struct Library {
    file: &'static str,
    table: &'static str,
    base: &'static [&'static str],
    about: &'static str,
}

const LIBRARIES: [Library; 2] = [
    Library {
        file: "libibverbs.so.1",
        table: "Verbs",
        base: &["IBVERBS_1.0", "IBVERBS_1.1"],
        about: " The functions of libibverbs. Those that came with a later version may be absent.",
    },
    Library {
        file: "librdmacm.so.1",
        table: "Cm",
        base: &["RDMACM_1.0"],
        about: " The functions of librdmacm. Those that came with a later version may be absent.",
    },
];

/// Returns the text of `functions.rs`.
pub(crate) fn render(parsed: &Parsed, roots: &Roots) -> Result<String, Error> {
    let mut file: syn::File = syn::parse_quote! {
        use libc::{fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, timeval};

        use crate::bindings::*;
        use crate::load::{Library, OpenError};
    };
    let mut bound = 0;
    for library in &LIBRARIES {
        let versions = versions(library, roots)?;
        let mine: Vec<(&ForeignItemFn, &str)> = parsed
            .functions
            .iter()
            .filter_map(|f| Some((f, versions.get(&f.sig.ident.to_string())?.as_str())))
            .collect();
        bound += mine.len();
        file.items.extend(table(library, &mine));
    }
    // `ibv_static_providers` is for programs that link providers statically, but a shared library also exports
    // it.
    if bound != parsed.functions.len() {
        return Err(format!("{} functions declared, {bound} exported", parsed.functions.len()).into());
    }
    Ok(prettyplease::unparse(&file))
}

/// Returns the default version of every symbol that the library exports.
fn versions(library: &Library, roots: &Roots) -> Result<HashMap<String, String>, Error> {
    let path = roots.library(library.file)?;
    let output = Command::new("readelf").args(["-W", "--dyn-syms"]).arg(&path).output()?;
    let text = String::from_utf8(output.stdout)?;
    let symbols = text.lines().filter_map(|line| line.split_whitespace().nth(7)?.split_once("@@"));
    Ok(symbols.map(|(name, version)| (name.to_string(), version.to_string())).collect())
}

fn table(library: &Library, functions: &[(&ForeignItemFn, &str)]) -> Vec<syn::Item> {
    let (name, about, file) = (format_ident!("{}", library.table), library.about, c_string(library.file));
    let fields = functions.iter().map(|(function, version)| field(library, function, version));
    let lookups = functions.iter().map(|(function, version)| {
        let ident = &function.sig.ident;
        let (symbol, label) = (c_string(&ident.to_string()), c_string(version));
        if library.base.contains(version) {
            quote!(#ident: library.required(#symbol, #label)?)
        } else {
            quote!(#ident: library.optional(#symbol, #label))
        }
    });
    let structure = syn::parse_quote! {
        #[doc = #about]
        #[derive(Clone, Copy, Debug)]
        pub struct #name { #(#fields),* }
    };
    let implementation = syn::parse_quote! {
        impl #name {
            /// The file of the library.
            pub const LIBRARY: &core::ffi::CStr = #file;
            /// Looks up every function.
            ///
            /// # Safety
            /// `library` is the library that [`Self::LIBRARY`] names, of any release: its functions have the types
            /// that its headers declare under their versions.
            pub(crate) unsafe fn look_up(library: &Library) -> Result<Self, OpenError> {
                Ok(unsafe { Self { #(#lookups),* } })
            }
        }
    };
    vec![structure, implementation]
}

fn field(library: &Library, function: &ForeignItemFn, version: &str) -> proc_macro2::TokenStream {
    let (ident, inputs, output) = (&function.sig.ident, function.sig.inputs.iter(), &function.sig.output);
    let variadic = function.sig.variadic.as_ref().map(|_| quote!(, ...));
    let docs = function.attrs.iter().filter(|attribute| attribute.path().is_ident("doc"));
    let pointer = quote!(unsafe extern "C" fn(#(#inputs),* #variadic) #output);
    let ty = if library.base.contains(&version) { pointer } else { quote!(Option<#pointer>) };
    let docs: Vec<_> = docs.collect();
    let gap = (!docs.is_empty()).then(|| quote!(#[doc = ""]));
    let since = format!(" `{version}`");
    quote!(#(#docs)* #gap #[doc = #since] pub #ident: #ty)
}

fn c_string(text: &str) -> syn::LitCStr {
    let text = std::ffi::CString::new(text).unwrap_or_default();
    syn::LitCStr::new(&text, proc_macro2::Span::call_site())
}
