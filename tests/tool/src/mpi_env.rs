//! `nemesia mpi-env`: the variables by which an MPI runs over Nemesia, for the shell.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use crate::cli::{Mpi, MpiEnvArgs};
use crate::failure::Failure;
use crate::output;

/// The name of the provider's library.
const PROVIDER: &str = "libnemesia-fi.so";
/// The variable that names its directory.
const PROVIDER_PATH: &str = "FI_PROVIDER_PATH";

/// Prints the variables.
///
/// # Errors
/// The provider is not installed, or the output cannot be written.
pub(crate) fn mpi_env(args: &MpiEnvArgs) -> Result<(), Failure> {
    let chosen = std::env::var_os(PROVIDER_PATH).map(PathBuf::from);
    let program = std::env::current_exe().map_err(Failure::failed)?;
    let directory = provider_directory(chosen, &program)?;
    output::print(&lines(args.mpi, &directory))
}

/// Returns the directory of the provider: the one that the user has chosen, or that of the same installation.
fn provider_directory(chosen: Option<PathBuf>, program: &Path) -> Result<PathBuf, Failure> {
    let installed = program.ancestors().nth(2).map(|prefix| prefix.join("lib/libfabric"));
    let directory = chosen.or(installed).unwrap_or_default();
    if directory.join(PROVIDER).exists() {
        return Ok(directory);
    }
    let place = directory.display();
    Err(Failure::unusable(format!(
        "{PROVIDER} is not in {place}: install it with ffi/install.sh, or set {PROVIDER_PATH} to its directory"
    )))
}

/// Returns the lines for the shell.
fn lines(mpi: Mpi, directory: &Path) -> String {
    let variables = variables(mpi).iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let path = (PROVIDER_PATH.to_owned(), directory.display().to_string());
    std::iter::once(path)
        .chain(variables)
        .map(|(name, value)| format!("export {name}={}\n", quoted(&value)))
        .collect()
}

/// Returns the variables of an MPI, beside the directory of the provider.
const fn variables(mpi: Mpi) -> &'static [(&'static str, &'static str)] {
    match mpi {
        Mpi::Mpich => &[
            ("FI_PROVIDER", "nemesia"),
            ("MPIR_CVAR_CH4_NETMOD", "ofi"),
            // Also between processes of one machine.
            ("MPIR_CVAR_NOLOCAL", "1"),
        ],
        Mpi::Intel => &[("FI_PROVIDER", "nemesia"), ("I_MPI_FABRICS", "ofi")],
        Mpi::Openmpi => &[
            ("OMPI_MCA_pml", "cm"),
            ("OMPI_MCA_mtl", "ofi"),
            // No messages go over them: only the windows of version 5 do.
            ("OMPI_MCA_btl", "self,tcp"),
            ("OMPI_MCA_osc", "^ucx"),
            // The same setting, as version 5 and version 4 name it.
            ("OMPI_MCA_opal_common_ofi_provider_include", "nemesia"),
            ("OMPI_MCA_mtl_ofi_provider_include", "nemesia"),
        ],
    }
}

/// Returns a word of the shell.
fn quoted(value: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._,-^+:".contains(&byte);
    if !value.is_empty() && value.bytes().all(is_plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mpi_has_its_variables_as_lines_for_the_shell() {
        let at = |mpi| lines(mpi, Path::new("/opt/nemesia/lib/libfabric"));
        assert_eq!(
            at(Mpi::Mpich),
            "export FI_PROVIDER_PATH=/opt/nemesia/lib/libfabric\nexport FI_PROVIDER=nemesia\n\
             export MPIR_CVAR_CH4_NETMOD=ofi\nexport MPIR_CVAR_NOLOCAL=1\n"
        );
        assert!(at(Mpi::Intel).ends_with("export FI_PROVIDER=nemesia\nexport I_MPI_FABRICS=ofi\n"));
        assert!(at(Mpi::Openmpi).contains("export OMPI_MCA_opal_common_ofi_provider_include=nemesia\n"));
        let odd = lines(Mpi::Mpich, Path::new("/it's here"));
        assert!(odd.starts_with("export FI_PROVIDER_PATH='/it'\\''s here'\n"), "{odd}");
    }

    #[test]
    fn a_provider_that_is_not_there_is_named_with_the_remedy() {
        let failure = provider_directory(None, Path::new("/none/bin/nemesia")).unwrap_err();
        assert_eq!(failure.status, 2);
        let words = ["/none/lib/libfabric", PROVIDER, "ffi/install.sh", PROVIDER_PATH];
        assert!(words.iter().all(|word| failure.message.contains(word)), "{}", failure.message);
        assert!(provider_directory(Some("/other".into()), Path::new("/none/bin/nemesia")).is_err());
    }
}
