//! Types and constants: bindgen's output for the headers, divided into types and functions.

use bindgen::callbacks::{DeriveTrait, ImplementsTrait, ParseCallbacks};
use bindgen::{Builder, EnumVariation, Formatter};
use syn::visit_mut::VisitMut;
use syn::{Attribute, ForeignItemFn, Item};

use crate::Error;
use crate::headers::Roots;

/// The declarations of the headers.
pub(crate) struct Parsed {
    /// Types and constants.
    pub(crate) types: syn::File,
    /// The functions that the libraries export.
    pub(crate) functions: Vec<ForeignItemFn>,
}

/// The headers that are bound. `verbs.h` and `rdma_cma.h` include the others.
pub(crate) const HEADERS: &str = "#include <infiniband/verbs.h>\n#include <infiniband/tm_types.h>\n\
    #include <infiniband/ib.h>\n#include <rdma/rdma_cma.h>\n#include <rdma/rdma_verbs.h>\n#include <rdma/rsocket.h>\n";

/// Types of the C library: taken from the crate `libc`, because they differ from processor to processor.
const FROM_LIBC: [&str; 18] = [
    "sockaddr",
    "sockaddr_in",
    "sockaddr_in6",
    "sockaddr_storage",
    "in_addr",
    "in6_addr",
    "sa_family_t",
    "socklen_t",
    "timespec",
    "timeval",
    "pthread_mutex_t",
    "pthread_cond_t",
    "iovec",
    "msghdr",
    "pollfd",
    "nfds_t",
    "fd_set",
    "off_t",
];

/// Runs bindgen and sorts its output.
pub(crate) fn parse(roots: &Roots) -> Result<Parsed, Error> {
    let mut builder = Builder::default()
        .header_contents("rdma-core.h", HEADERS)
        .clang_args(roots.include_arguments())
        .allowlist_file(".*/include/(infiniband/[a-z_]+|rdma/(rdma_cma|rdma_verbs|rsocket))\\.h")
        .blocklist_type("__pthread_.*|__atomic_wide_counter.*|__fd_mask|sockaddr_.*__bindgen.*|in6_addr__.*")
        .use_core()
        .default_enum_style(EnumVariation::Consts)
        .prepend_enum_name(false)
        .layout_tests(false)
        .merge_extern_blocks(true)
        .rust_target(bindgen::RustTarget::stable(88, 0).map_err(|e| e.to_string())?)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(Formatter::None)
        .parse_callbacks(Box::new(Comments));
    for name in FROM_LIBC {
        builder = builder.blocklist_type(name);
    }
    let text = builder.generate()?.to_string();
    let mut types = syn::parse_file(&text)?;
    Lines.visit_file_mut(&mut types);
    let mut functions = Vec::new();
    types.items.retain_mut(|item| match item {
        Item::ForeignMod(foreign) => {
            functions.extend(foreign.items.drain(..).filter_map(|item| match item {
                syn::ForeignItem::Fn(function) => Some(function),
                _ => None,
            }));
            false
        }
        _ => true,
    });
    let names: Vec<syn::Ident> = FROM_LIBC
        .iter()
        .filter(|name| mentions(&text, name))
        .map(|name| quote::format_ident!("{name}"))
        .collect();
    let of_libc = syn::parse_quote!(
        #[allow(unused_imports, reason = "some are of functions only")]
        use libc::{#(#names),*};
    );
    types.items.insert(0, of_libc);
    types.items.extend(aliases(&std::fs::read_to_string(roots.header("infiniband/verbs_api.h"))?));
    Ok(Parsed { types, functions })
}

/// Returns the aliases by which `verbs_api.h` renames types and constants of the kernel's interface. They are
/// macros, which bindgen cannot read.
fn aliases(text: &str) -> Vec<Item> {
    let defines = text.lines().filter_map(|line| line.strip_prefix("#define "));
    let pairs = defines.filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?, words.next()?))
            .filter(|(new, _)| new.starts_with("ibv_") || new.starts_with("IBV_"))
    });
    let pairs = pairs.filter(|(_, old)| old.starts_with("ib_uverbs_") || old.starts_with("IB_UVERBS_"));
    pairs
        // Bindgen has already read the macros with a number.
        .filter(|(_, old)| !old.starts_with("IB_UVERBS_ACCESS_OPTIONAL_") || old.ends_with("_RANGE"))
        .map(|(new, old)| {
            let (new, old) = (quote::format_ident!("{new}"), quote::format_ident!("{old}"));
            syn::parse_quote!(pub use self::#old as #new;)
        })
        .collect()
}

fn mentions(text: &str, name: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name)
}

/// The comments of the headers are plain text: characters that rustdoc would read as a link, a list or code are
/// escaped.
#[derive(Debug)]
struct Comments;

impl ParseCallbacks for Comments {
    /// The types that come from the crate `libc` are plain data.
    fn blocklisted_type_implements_trait(&self, _: &str, derive: DeriveTrait) -> Option<ImplementsTrait> {
        matches!(derive, DeriveTrait::Copy | DeriveTrait::Debug).then_some(ImplementsTrait::Yes)
    }

    fn process_comment(&self, comment: &str) -> Option<String> {
        let lines = comment.lines().map(|line| {
            let line = line.trim();
            let mut escaped = String::with_capacity(line.len() + 1);
            let mut before = ' ';
            for (at, c) in line.char_indices() {
                let after = line[at + c.len_utf8()..].chars().next().unwrap_or(' ');
                // An underscore within a word has no meaning in Markdown.
                let is_mark = if c == '_' {
                    !(before.is_alphanumeric() && after.is_alphanumeric())
                } else {
                    "\\`*[]<>#~|&".contains(c)
                };
                if is_mark {
                    escaped.push('\\');
                }
                escaped.push(c);
                before = c;
            }
            // A dash or a number at the start would begin a list, and an empty line would end a paragraph.
            if escaped.starts_with(['-', '+', '=']) { format!(" \\{escaped}") } else { format!(" {escaped}") }
        });
        Some(lines.collect::<Vec<_>>().join("\n"))
    }
}

/// Makes each line of documentation one attribute, which is printed as `///`.
struct Lines;

impl VisitMut for Lines {
    fn visit_attributes_mut(&mut self, attributes: &mut Vec<Attribute>) {
        let split = attributes.drain(..).flat_map(|attribute| match doc(&attribute) {
            Some(text) => text.lines().map(|line| syn::parse_quote!(#[doc = #line])).collect(),
            None => vec![attribute],
        });
        *attributes = split.collect();
    }
}

fn doc(attribute: &Attribute) -> Option<String> {
    match &attribute.meta {
        syn::Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}
