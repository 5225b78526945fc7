//! The registration of report functions: the only function that a copy of Nemesia looks up by its name.

use crate::report::{Report, add};
use crate::{malloc, thread};

/// Registers `report` for the rest of the process. Returns 0; 1 if the limit is reached; 2 if `malloc` or
/// threads cannot be observed here.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nemesia_interposer_1(report: Report) -> i32 {
    if !malloc::is_tame() || !thread::is_ready() {
        return 2;
    }
    i32::from(!add(report))
}
