//! The package `nemesia` makes public only the interface for users.

use syn::{Attribute, Item, Visibility};

use crate::source::{File, Finding};
use crate::syntax::parse;

const LIB: &str = "sys/src/lib.rs";
/// The modules for users. A public item of these is an interface, which must be safe for every argument.
const PUBLIC: [&str; 7] = ["bootstrap", "rdma_channel", "regcache", "shm", "tcp", "testing", "verbs"];
/// The module for this repository's own tests. It exists only with the feature of the same name.
const INTERNALS: &str = "internals";

/// Checks that the root of the package declares no other module public.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    match files.iter().find(|file| file.path == LIB) {
        Some(file) => check_root(&file.text),
        None => vec![Finding::new(LIB, 1, "does not exist")],
    }
}

fn check_root(text: &str) -> Vec<Finding> {
    let file = match parse(LIB, text) {
        Ok(file) => file,
        Err(finding) => return vec![finding],
    };
    let mut findings = Vec::new();
    for item in &file.items {
        let Item::Mod(module) = item else { continue };
        let name = module.ident.to_string();
        let is_public = matches!(module.vis, Visibility::Public(_));
        let may = PUBLIC.contains(&name.as_str()) || name == INTERNALS && is_only_ours(&module.attrs);
        if is_public && !may {
            let line = module.ident.span().start().line;
            findings.push(Finding::new(LIB, line, format!("`{name}` is public, but no interface for users")));
        }
    }
    findings
}

/// Returns whether the module exists only with the feature, and is not documented.
fn is_only_ours(attributes: &[Attribute]) -> bool {
    let says = |name: &str, words: &str| {
        attributes.iter().filter_map(|attribute| attribute.meta.require_list().ok()).any(|list| {
            let tokens: String = list.tokens.to_string().split_whitespace().collect();
            list.path.is_ident(name) && tokens == words
        })
    };
    says("cfg", "feature=\"internals\"") && says("doc", "hidden")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_module_that_no_user_needs_is_reported() {
        let expected = Finding::new(LIB, 2, "`os` is public, but no interface for users");
        assert_eq!(check_root("pub mod tcp;\npub mod os;\nmod cm;\npub(crate) mod route;\n"), [expected]);
    }

    #[test]
    fn internals_need_their_feature_and_no_documentation() {
        assert_eq!(check_root("#[cfg(feature = \"internals\")]\n#[doc(hidden)]\npub mod internals;\n"), []);
        for other in ["", "#[doc(hidden)]", "#[cfg(feature = \"internals\")]", "#[cfg(feature = \"trace\")]"]
        {
            assert_eq!(check_root(&format!("{other}\npub mod internals;\n")).len(), 1, "{other}");
        }
    }
}
