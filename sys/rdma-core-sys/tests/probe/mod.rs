//! Queries the C compiler for the layout of types: writes a program that prints it, and runs the program.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// The C compiler's layout of one type.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// `sizeof`.
    pub(crate) size: usize,
    /// `_Alignof`.
    pub(crate) align: usize,
    /// `offsetof` of each requested field, in the order of the request.
    pub(crate) offsets: Vec<usize>,
}

/// Returns the layout of types and their fields, all by their names in C. `arguments` are for the compiler; the
/// program is built in `scratch`.
pub(crate) fn ask_c(
    types: &[(String, Vec<String>)],
    arguments: &[String],
    scratch: &Path,
) -> Result<Vec<Answer>, String> {
    let source = scratch.join("layout.c");
    let program = scratch.join("layout");
    std::fs::create_dir_all(scratch).map_err(|error| error.to_string())?;
    std::fs::write(&source, program_text(types)).map_err(|error| error.to_string())?;
    let mut compile = Command::new("cc");
    compile.args(["-std=gnu11", "-w"]).args(arguments).arg(&source).arg("-o").arg(&program);
    output(&mut compile)?;
    let text = output(&mut Command::new(&program))?;
    let mut numbers = text.split_whitespace().map(|word| word.parse::<usize>().map_err(|e| e.to_string()));
    let mut next = || numbers.next().unwrap_or_else(|| Err("the C program printed too little".into()));
    types
        .iter()
        .map(|(_, fields)| {
            let (size, align) = (next()?, next()?);
            let offsets = fields.iter().map(|_| next()).collect::<Result<_, _>>()?;
            Ok(Answer { size, align, offsets })
        })
        .collect()
}

fn program_text(types: &[(String, Vec<String>)]) -> String {
    let mut text = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <infiniband/tm_types.h>\n\
         #include <infiniband/ib.h>\n#include <rdma/rdma_cma.h>\n#include <rdma/rdma_verbs.h>\n\
         #include <rdma/rsocket.h>\n\n\
         #define TYPE(t) printf(\"%zu %zu\\n\", sizeof(t), _Alignof(t))\n\
         #define FIELD(t, f) printf(\"%zu\\n\", offsetof(t, f))\n\n\
         int main(void) {\n",
    );
    for (name, fields) in types {
        let _ = writeln!(text, "    TYPE({name});");
        for field in fields {
            let _ = writeln!(text, "    FIELD({name}, {field});");
        }
    }
    text.push_str("    return 0;\n}\n");
    text
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return String::from_utf8(output.stdout).map_err(|error| error.to_string());
    }
    Err(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}
