//! The commands of the README exist, and CI runs the command that the README names.

use std::os::unix::fs::PermissionsExt;

use crate::source::{File, Finding, names, root};

const README: &str = "README.md";
const CI: &str = ".ci/run";
const CONFIG: &str = ".cargo/config.toml";
/// The two commands that the README gives its readers.
const COMMANDS: [&str; 2] = ["cargo run --release", "tests/run"];
/// The subcommands that every cargo has.
const BUILT_IN: [&str; 11] =
    ["add", "bench", "build", "check", "clippy", "doc", "fmt", "install", "metadata", "run", "test"];

/// Returns the executable files of the repository.
pub(crate) fn executables() -> Vec<String> {
    let mode = |name: &String| std::fs::metadata(root().join(name)).map(|it| it.permissions().mode());
    names().into_iter().filter(|name| mode(name).is_ok_and(|mode| mode & 0o100 != 0)).collect()
}

/// Checks that README and CI name the commands, and that each command in a shell block of the README can be
/// run.
pub(crate) fn check(files: &[File], executables: &[String]) -> Vec<Finding> {
    let text = |path: &str| files.iter().find(|file| file.path == path).map_or("", |file| file.text.as_str());
    let (readme, ci) = (text(README), text(CI));
    let mut findings = Vec::new();
    for command in COMMANDS.into_iter().filter(|command| !readme.contains(command)) {
        findings.push(Finding::new(README, 1, format!("does not mention `{command}`")));
    }
    if !ci.lines().any(|line| !line.trim_start().starts_with('#') && line.contains("tests/run")) {
        findings.push(Finding::new(CI, 1, "does not call `tests/run`"));
    }
    for name in ["tests/run", CI] {
        if !executables.iter().any(|executable| executable == name) {
            findings.push(Finding::new(name, 1, "is not an executable file"));
        }
    }
    for (line, command) in commands(readme) {
        if let Some(what) = cannot_run(command, text(CONFIG), executables) {
            findings.push(Finding::new(README, line, what));
        }
    }
    findings
}

/// Returns the lines of the shell blocks of a page, without comments.
fn commands(page: &str) -> Vec<(usize, &str)> {
    let mut shell = false;
    let mut open = false;
    let mut found = Vec::new();
    for (at, line) in page.lines().enumerate() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            open = !open;
            shell = open && ["sh", "bash", "shell", "console"].contains(&language.trim());
        } else if shell {
            let command = line.trim().trim_start_matches("$ ");
            found.push((at + 1, command));
        }
    }
    found.retain(|(_, command)| !command.is_empty() && !command.starts_with('#'));
    found
}

/// Returns why a command of this repository cannot be run; `None` for commands of the system.
fn cannot_run(command: &str, config: &str, executables: &[String]) -> Option<String> {
    let mut words = command.split_whitespace();
    let program = words.next()?.trim_start_matches("./");
    let here = ["tests/", ".ci/", "verification/"].iter().any(|directory| program.starts_with(directory));
    if here && !executables.iter().any(|executable| executable == program) {
        return Some(format!("`{program}` is not an executable file"));
    }
    let subcommand = words.find(|word| !word.starts_with('+')).filter(|_| program == "cargo")?;
    let alias = |line: &str| line.split_once('=').is_some_and(|(name, _)| name.trim() == subcommand);
    let known = BUILT_IN.contains(&subcommand) || config.lines().any(alias);
    (!known).then(|| format!("`cargo {subcommand}` is neither built in nor an alias"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "Run\n```sh\ncargo run --release -- info\ntests/run   # all\ncargo proofs\n```\n";

    fn found(readme: &str, ci: &str, executable: &[&str]) -> Vec<String> {
        let config = "[alias]\nproofs = [\"run\"]\n";
        let files = [File::new(README, readme), File::new(CI, ci), File::new(CONFIG, config)];
        let executables: Vec<String> = executable.iter().map(ToString::to_string).collect();
        check(&files, &executables).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_readme_whose_commands_exist_passes() {
        assert_eq!(found(GOOD, "exec tests/run\n", &["tests/run", CI]), [""; 0]);
    }

    #[test]
    fn a_missing_command_is_reported() {
        let missing = ["README.md:1: does not mention `cargo run --release`"];
        assert_eq!(found("See tests/run.\n", "exec tests/run\n", &["tests/run", CI]), missing);
        assert_eq!(found("", "exec tests/run\n", &["tests/run", CI]).len(), 2);
    }

    #[test]
    fn a_ci_that_does_something_else_is_reported() {
        assert_eq!(
            found(GOOD, "# tests/run\ncargo test\n", &["tests/run", CI]),
            [".ci/run:1: does not call `tests/run`"]
        );
    }

    #[test]
    fn a_script_that_cannot_be_executed_is_reported() {
        let expected =
            ["tests/run:1: is not an executable file", "README.md:4: `tests/run` is not an executable file"];
        assert_eq!(found(GOOD, "exec tests/run\n", &[CI]), expected);
    }

    #[test]
    fn an_unknown_subcommand_is_reported_in_shell_blocks_only() {
        let block = format!("{GOOD}```text\ncargo nonsense\n```\n```sh\n$ cargo nonsense\n```\n");
        let expected = ["README.md:11: `cargo nonsense` is neither built in nor an alias"];
        assert_eq!(found(&block, "exec tests/run\n", &["tests/run", CI]), expected);
    }
}
