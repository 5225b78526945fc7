//! Programs that were compiled against an earlier header run with a later library: names, calls and layouts stay what
//! the committed list `ffi/abi.txt` says. What is new is added to the list; it changes nothing for such programs.

use std::path::Path;
use std::process::Command;

use crate::toolchain::{installed, lines, missing, output, scratch, source};
use nemesia_tests::skip;

const LIST: &str = "ffi/abi.txt";
const CURE: &str = "NEMESIA_BLESS=1 cargo test -p nemesia-tests --test c abi";
const INCLUDE: &str = "ffi/include";
/// The libraries, below the prefix of the installation.
const LIBRARIES: [&str; 2] = ["lib/libnemesia.so", "lib/libfabric/libnemesia-fi.so"];

/// What a header declares: a line of the list each, or C code that prints it.
#[derive(Default)]
struct Declared {
    lines: Vec<String>,
    code: String,
}

/// Returns the text without comments, and lines that continue joined.
fn statements(header: &str) -> Vec<String> {
    let mut text = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        text.push_str(before);
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    let directive = |line: &&str| !line.trim_start().starts_with('#');
    let code: Vec<&str> = text.lines().filter(directive).collect();
    let code = code.join(" ").replace("extern \"C\" {", "");
    code.split_inclusive([';', '{', '}'])
        .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

fn declared(header: &str) -> Declared {
    let mut it = Declared::default();
    for line in header.lines().filter(|line| line.starts_with("#define ")) {
        let mut words = line.split_whitespace().skip(1);
        if let (Some(name), Some(value)) = (words.next(), words.next()) {
            it.lines.push(format!("constant {name} {value}"));
        }
    }
    let mut structure = None;
    for statement in statements(header) {
        if let Some(name) = statement.strip_prefix("typedef struct ").and_then(|it| it.strip_suffix(" {")) {
            structure = Some(name.to_owned());
            it.code += &format!("printf(\"structure {name} %zu\\n\", sizeof({name}));\n");
        } else if statement.ends_with('}') {
            structure = None;
        } else if let (Some(name), Some(field)) = (&structure, field_of(&statement)) {
            it.code += &format!(
                "printf(\"field {name}.{field} %zu %zu\\n\", offsetof({name}, {field}), \
                 sizeof((({name} *)0)->{field}));\n"
            );
        } else if statement.ends_with(");") {
            it.lines.push(format!("call {statement}"));
        }
    }
    it
}

/// Returns the name of a field: the last word of its declaration, or that of a pointer to a function.
fn field_of(statement: &str) -> Option<&str> {
    let declaration = statement.strip_suffix(';')?;
    if let Some((_, name)) = declaration.split_once("(*") {
        return name.split_once(')').map(|(name, _)| name);
    }
    declaration.split('[').next()?.rsplit([' ', '*']).next().filter(|name| !name.is_empty())
}

/// Returns what is there now, in the form of the list.
fn present() -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for path in LIBRARIES {
        let (library, name) = (installed()?.join(path), path.rsplit('/').next().unwrap_or(path));
        let listing = output(Command::new("nm").args(["-D", "--defined-only"]).arg(&library))?;
        all.extend(
            lines(&listing, |line| line.split_whitespace().last()).iter().map(|it| format!("{name} {it}")),
        );
        let dynamic = output(Command::new("readelf").arg("-d").arg(&library))?;
        let soname = dynamic.split_once("soname: [").and_then(|(_, it)| it.split_once(']'));
        all.push(format!("{name} soname {}", soname.map_or("none", |(soname, _)| soname)));
    }
    let mut headers = Vec::new();
    for entry in std::fs::read_dir(source(INCLUDE)).map_err(|error| error.to_string())?.flatten() {
        headers.push(entry.path());
    }
    headers.sort();
    for header in headers {
        let it = declared(&std::fs::read_to_string(&header).map_err(|error| error.to_string())?);
        all.extend(it.lines);
        all.extend(layouts(&header, &it.code)?);
    }
    all.sort();
    Ok(all)
}

/// Returns what this code prints, compiled with a header.
fn layouts(header: &Path, code: &str) -> Result<Vec<String>, String> {
    let name = header.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (from, to) = (scratch().join(format!("abi-{name}.c")), scratch().join(format!("abi-{name}.out")));
    let text = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"{name}\"\nint main(void) {{\n{code}return 0;\n}}\n"
    );
    std::fs::write(&from, text).map_err(|error| error.to_string())?;
    output(Command::new("cc").arg("-std=c99").arg("-I").arg(source(INCLUDE)).arg(&from).arg("-o").arg(&to))?;
    let printed = output(&mut Command::new(to))?;
    Ok(printed.lines().map(str::to_owned).collect())
}

#[test]
fn abi_is_what_the_committed_list_says() -> Result<(), String> {
    const TEST: &str = "abi_is_what_the_committed_list_says";
    if let Some(tool) = missing(&["cc", "nm", "readelf"]) {
        skip(TEST, &format!("`{tool}` is not installed"));
        return Ok(());
    }
    if !cfg!(all(target_pointer_width = "64", target_os = "linux")) {
        skip(TEST, "the list is that of Linux with addresses of 64 bits");
        return Ok(());
    }
    let present = present()?;
    if std::env::var_os("NEMESIA_BLESS").is_some() {
        std::fs::write(source(LIST), present.join("\n") + "\n").map_err(|error| error.to_string())?;
    }
    let committed = std::fs::read_to_string(source(LIST)).map_err(|error| format!("{LIST}: {error}"))?;
    let gone: Vec<&str> = committed.lines().filter(|line| !present.iter().any(|it| it == line)).collect();
    assert!(
        gone.is_empty(),
        "this is no longer so, which breaks programs; see {LIST}: {gone:#?}; if it shall be: {CURE}"
    );
    let added: Vec<_> = present.iter().filter(|it| !committed.lines().any(|line| line == *it)).collect();
    if !added.is_empty() {
        println!("not in {LIST} yet: {added:#?}; {CURE}");
    }
    Ok(())
}

#[test]
fn abi_of_a_header_is_read_with_its_fields_and_calls() {
    let it = declared(
        "#define NEMESIA_ONE 1\n/** a { comment; */\ntypedef struct nemesia_pair {\n    /** first */\n int32_t one;\n\
         void (*call)(int it);\n    uint8_t bytes[4];\n} nemesia_pair;\nint nemesia_add(int one,\n    int two);\n",
    );
    assert_eq!(it.lines, ["constant NEMESIA_ONE 1", "call int nemesia_add(int one, int two);"]);
    for part in ["sizeof(nemesia_pair)", "nemesia_pair, one)", "nemesia_pair, call)", "nemesia_pair, bytes)"]
    {
        assert!(it.code.contains(part), "{part}: {}", it.code);
    }
}
