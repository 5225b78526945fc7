//! Why an operation has failed: an error number, and a text for `fi_cq_strerror`.

use std::ffi::{CStr, CString};
use std::sync::{Mutex, PoisonError};

use nemesia::Error;

use crate::bindings as fi;
use crate::object::Errno;

/// The most texts that a process keeps, until its end: `fi_cq_strerror` returns their addresses. Later failures have
/// the text of their number.
const MOST_TEXTS: usize = 256;
/// A provider's error number above this one is the number of a text. All error numbers are smaller.
const TEXTS: u32 = 1 << 16;

static KEPT: Mutex<Vec<&'static CStr>> = Mutex::new(Vec::new());

/// The failure of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    errno: u16,
    /// The number of the text, from 1; 0: that of the error number.
    text: u16,
}

impl From<Errno> for Failure {
    fn from(Errno(number): Errno) -> Self {
        Self { errno: number as u16, text: 0 }
    }
}

impl Failure {
    /// Returns the failure that an error of Nemesia is.
    #[cold]
    pub(crate) fn of(error: &Error) -> Self {
        Self { text: kept(error.to_string()), ..Errno::from(error).into() }
    }

    /// Returns the error number of libfabric.
    pub(crate) const fn errno(self) -> u32 {
        self.errno as u32
    }

    /// Returns the number by which `fi_cq_strerror` finds the text.
    pub(crate) const fn number(self) -> u32 {
        if self.text == 0 { self.errno() } else { TEXTS + self.text as u32 }
    }
}

/// Keeps a text. Returns its number, or 0 if there are too many.
fn kept(text: String) -> u16 {
    let Ok(text) = CString::new(text) else { return 0 };
    let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let at = all.iter().position(|known| **known == *text).unwrap_or(all.len());
    if at == all.len() {
        if at == MOST_TEXTS {
            return 0;
        }
        all.push(Box::leak(text.into_boxed_c_str()));
    }
    at as u16 + 1
}

/// Returns the text of a provider's error number.
pub(crate) fn text_of(number: u32) -> &'static CStr {
    if let Some(at) = number.checked_sub(TEXTS + 1) {
        let all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        return all.get(at as usize).copied().unwrap_or(c"the operation has failed");
    }
    match number {
        fi::FI_EINVAL => c"an argument is wrong",
        fi::FI_EOPBADSTATE => c"the endpoint is not enabled: call fi_enable",
        fi::FI_ENOAV => c"the endpoint has no address vector: bind one",
        fi::FI_ENOCQ => c"the endpoint has no completion queue: bind one",
        fi::FI_EOPNOTSUPP => c"the provider does not have this operation: ask fi_getinfo and fi_query_atomic",
        fi::FI_ETRUNC => c"the message is longer than its buffer",
        fi::FI_ECANCELED => c"the operation was cancelled",
        fi::FI_ECONNABORTED => c"the peer is gone, or cannot be reached",
        fi::FI_ENOMSG => c"there is no such message",
        fi::FI_ENOSPC => c"unexpected messages fill NEMESIA_UNEXPECTED_BYTES",
        _ => c"the operation has failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_text_of_its_error_and_equal_texts_have_one_number() {
        let error = Error::Cancelled;
        let (first, again) = (Failure::of(&error), Failure::of(&error));
        assert_eq!((first.errno(), first), (fi::FI_ECANCELED, again));
        assert_eq!(text_of(first.number()).to_str().unwrap(), error.to_string());
        let plain = Failure::from(Errno::TRUNCATED);
        assert_eq!((plain.errno(), plain.number()), (fi::FI_ETRUNC, fi::FI_ETRUNC));
        for unknown in [TEXTS, TEXTS + 200, u32::MAX] {
            assert_eq!(text_of(unknown), c"the operation has failed");
        }
    }
}
