//! The rules that every function follows at the boundary: pointers in, pointers out, and no panic across.

use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::slice;

use nemesia::internals::os::{CancellationOff, with_room};

use crate::status::{Fault, NEMESIA_ERR_PANIC, NEMESIA_ERR_TRUNCATED, NEMESIA_OK};

/// A size that no future version of a structure reaches; a larger `struct_size` is an error.
const LONGEST_STRUCT: usize = 4096;

/// A structure that may grow at its end in later versions of the header.
///
/// # Safety
/// The type is `repr(C)` without padding and begins with a `u64` that holds the size in bytes of the caller's
/// version. Every pattern of bytes is a valid value.
pub(crate) unsafe trait Versioned: Copy {
    /// Its name in C.
    const NAME: &'static str;
    /// The size in bytes of the first version.
    const FIRST: usize;
    /// The value of each byte of a field that one of the two versions does not have.
    const UNSET: u8;
}

/// An output of the caller's. Only [`Out::write`] writes to it.
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Makes a required output.
    ///
    /// # Safety
    /// `pointer` is null, or points to a `T` of the caller's that may be written until the call ends.
    pub(crate) unsafe fn required(pointer: *mut T, name: &str) -> Result<Self, Fault> {
        if pointer.is_null() { Err(missing(name)) } else { Ok(Self(pointer)) }
    }

    /// Makes an output that the caller may omit.
    ///
    /// # Safety
    /// See [`Out::required`].
    pub(crate) unsafe fn optional(pointer: *mut T) -> Self {
        Self(pointer)
    }

    /// Makes an output for a value of this library.
    pub(crate) fn to(place: &mut T) -> Self {
        Self(place)
    }

    #[inline]
    pub(crate) fn write(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so the caller of the constructor has promised that it may be written.
            unsafe { self.0.write(value) };
        }
    }
}

/// Runs `work`, which may fail or panic, and returns a code. Calls `poison` if `work` panicked. The calling thread
/// cannot be cancelled meanwhile.
#[inline]
pub(crate) fn guard(work: impl FnOnce() -> Result<i32, Fault>, poison: impl FnOnce()) -> i32 {
    let _held = CancellationOff::hold();
    // Values that a panic may leave incomplete are behind `poison`, or have not reached the caller yet.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(code)) => code,
        Ok(Err(fault)) => fault.report(),
        Err(panic) => {
            poison();
            panicked(panic)
        }
    }
}

/// Runs `work` as [`guard`] does, for calls that open or close: they need more stack than small threads have.
pub(crate) fn guard_with_room(work: impl FnOnce() -> Result<i32, Fault>) -> i32 {
    with_room(|| guard(work, || ()))
}

/// Returns texts that end with 0, for C.
pub(crate) fn c_texts(texts: &[String]) -> Vec<CString> {
    texts.iter().map(|text| CString::new(text.as_str()).unwrap_or_default()).collect()
}

/// Reports a panic. The payload is not dropped, because its drop could panic, too.
#[cold]
pub(crate) fn panicked(panic: Box<dyn Any + Send>) -> i32 {
    let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "no text".to_owned(),
    };
    std::mem::forget(panic);
    Fault::new(NEMESIA_ERR_PANIC, format!("internal error, please report it: {text}")).report()
}

/// Makes memory of the caller's initialised by the rules of Rust.
///
/// A buffer of C may be fresh from `malloc`. The layers below make slices of bytes of it, and a slice must
/// not cover uninitialised memory. No instruction is executed: the assembly block takes the address and
/// declares that it may access memory. The compiler must therefore assume that the block has written the
/// bytes, with the values that the memory holds. No code depends on these values, because the bytes are
/// written before they are read.
#[inline(always)]
pub(crate) fn settle<T>(base: *const T) {
    // SAFETY: the block is empty. The compiler may assume that it writes the bytes that are there. For
    // buffers that a function fills, its caller permits that; other buffers stay unchanged.
    unsafe { std::arch::asm!("/* {0} */", in(reg) base, options(nostack, preserves_flags)) };
}

/// Checks a buffer of the caller's: it is not null unless it is empty, and it is not longer than memory can
/// be. From now on its bytes, and those of a list's runs, count as initialised ([`settle`]).
#[inline]
pub(crate) fn check_buffer<T>(base: *const T, count: usize, name: &str) -> Result<(), Fault> {
    if base.is_null() && count > 0 {
        return Err(missing(name));
    }
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Fault::argument(format!(
            "{name} has {count} elements, which is more than memory can hold"
        )));
    }
    settle(base);
    Ok(())
}

/// Returns the caller's bytes; null is allowed if there are none.
///
/// # Safety
/// If `len` is not 0, there are `len` bytes at `buffer`, and they do not change while the result is used.
#[inline]
pub(crate) unsafe fn bytes<'a>(buffer: *const c_void, len: usize, name: &str) -> Result<&'a [u8], Fault> {
    check_buffer(buffer.cast::<u8>(), len, name)?;
    let base = NonNull::new(buffer.cast_mut().cast::<u8>()).unwrap_or(NonNull::dangling());
    // SAFETY: checked above: null only if it is empty. The rest is the caller's promise.
    Ok(unsafe { slice::from_raw_parts(base.as_ptr(), len) })
}

/// Returns the caller's buffer to write to; null is allowed if it is empty.
///
/// # Safety
/// If `capacity` is not 0, there are `capacity` bytes at `buffer`, initialised or not, and no other code uses
/// them while the result is used.
#[inline]
pub(crate) unsafe fn room<'a>(
    buffer: *mut c_void,
    capacity: usize,
    name: &str,
) -> Result<&'a mut [u8], Fault> {
    check_buffer(buffer.cast::<u8>(), capacity, name)?;
    let base = NonNull::new(buffer.cast::<u8>()).unwrap_or(NonNull::dangling());
    // SAFETY: checked above: null only if it is empty; `settle` initialised it. The rest is the caller's
    // promise.
    Ok(unsafe { slice::from_raw_parts_mut(base.as_ptr(), capacity) })
}

/// Returns the caller's array; any address is allowed if it is empty.
///
/// # Safety
/// If `count` is not 0, there are `count` elements at `base`, initialised unless `T` need not be, and no
/// other code uses them while the result is used.
pub(crate) unsafe fn lent<'a, T>(base: *mut T, count: usize) -> &'a mut [T] {
    if count == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts_mut(base, count) }
}

/// Returns a text of the caller's.
///
/// # Safety
/// `pointer` is null, or points to a terminated text that does not change while the result is used.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Fault> {
    if pointer.is_null() {
        return Err(missing(name));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Fault::argument(format!("{name} is not UTF-8: {}", text.to_string_lossy())))
}

/// Copies as much of a text as fits to the caller, terminated, and writes the length of the whole text.
///
/// # Safety
/// `out_text` is null or has `bytes` bytes; `out_len` is null or can be written.
pub(crate) unsafe fn write_text(
    text: &str,
    bytes: usize,
    out_text: *mut c_char,
    out_len: *mut usize,
    name: &str,
) -> Result<i32, Fault> {
    check_buffer(out_text, bytes, name)?;
    let fits = text.len().min(bytes.saturating_sub(1));
    if bytes > 0 {
        // SAFETY: `fits` bytes and the terminator are at most `bytes`, the size of the caller's buffer.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), out_text.cast::<u8>(), fits);
            out_text.add(fits).write(0);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { Out::optional(out_len) }.write(text.len());
    if bytes > text.len() {
        return Ok(NEMESIA_OK);
    }
    let message = format!("{name} has {bytes} bytes, {} are needed", text.len() + 1);
    Err(Fault::new(NEMESIA_ERR_TRUNCATED, message))
}

#[cold]
pub(crate) fn missing(name: &str) -> Fault {
    Fault::argument(format!("{name} is NULL"))
}

/// Copies a structure of the caller's, of any version.
///
/// # Safety
/// `pointer` is null, or points to as many readable bytes as its leading `struct_size` states.
pub(crate) unsafe fn read_versioned<T: Versioned>(pointer: *const T) -> Result<T, Fault> {
    if pointer.is_null() {
        return Err(missing(T::NAME));
    }
    // SAFETY: every version begins with its size.
    let size = unsafe { pointer.cast::<u64>().read() };
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    check_size::<T>(size)?;
    // SAFETY: the caller's promise: this many bytes are readable.
    let given = unsafe { slice::from_raw_parts(pointer.cast::<u8>(), size) };
    let (known, beyond) = given.split_at(size.min(size_of::<T>()));
    if beyond.iter().any(|byte| *byte != T::UNSET) {
        let text = format!("{} sets a field that this version of the library does not know", T::NAME);
        return Err(Fault::argument(text));
    }
    let mut copy = std::mem::MaybeUninit::<T>::uninit();
    // SAFETY: `copy` has this many bytes.
    unsafe { ptr::write_bytes(copy.as_mut_ptr().cast::<u8>(), T::UNSET, size_of::<T>()) };
    // SAFETY: `known` is not longer than `copy`, which is a local value.
    unsafe { ptr::copy_nonoverlapping(known.as_ptr(), copy.as_mut_ptr().cast::<u8>(), known.len()) };
    // SAFETY: every byte is initialised, and every pattern is a valid value by the promise of `Versioned`.
    Ok(unsafe { copy.assume_init() })
}

/// Copies a structure to the caller, as far as the version reaches that the caller's `struct_size` names.
/// Fields that this library does not know become [`Versioned::UNSET`]. The size itself does not change.
///
/// # Safety
/// `pointer` is null, or points to as many readable and writable bytes of the caller's as its leading
/// `struct_size` states.
pub(crate) unsafe fn write_versioned<T: Versioned>(pointer: *mut T, value: &T) -> Result<(), Fault> {
    if pointer.is_null() {
        return Err(missing(T::NAME));
    }
    // SAFETY: every version begins with its size.
    let given = unsafe { pointer.cast::<u64>().read() };
    let size = usize::try_from(given).unwrap_or(usize::MAX);
    check_size::<T>(size)?;
    let known = size.min(size_of::<T>()) - size_of::<u64>();
    let after = size_of::<u64>();
    // SAFETY: the caller's promise: `size` bytes can be written, and the first of them hold the size. `value`
    // has `known` bytes after its size.
    unsafe {
        let (from, to) = (ptr::from_ref(value).cast::<u8>().add(after), pointer.cast::<u8>().add(after));
        ptr::copy_nonoverlapping(from, to, known);
        ptr::write_bytes(to.add(known), T::UNSET, size - after - known);
    }
    Ok(())
}

/// Checks that `size` is one that a caller of some version can have set.
fn check_size<T: Versioned>(size: usize) -> Result<(), Fault> {
    // The fields fill whole words: any other size would cut one.
    if (T::FIRST..=LONGEST_STRUCT).contains(&size) && size.is_multiple_of(size_of::<u64>()) {
        return Ok(());
    }
    Err(Fault::argument(format!("struct_size is {size}: it must be sizeof({}), {}", T::NAME, size_of::<T>())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::NEMESIA_ERR_ARGUMENT;

    /// The second version of a structure.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Two {
        struct_size: u64,
        first: u64,
        second: u64,
    }

    // SAFETY: three numbers of one size.
    unsafe impl Versioned for Two {
        const NAME: &'static str = "two";
        const FIRST: usize = 16;
        const UNSET: u8 = 0xff;
    }

    fn read(words: &[u64]) -> Result<Two, Fault> {
        // SAFETY: the tests pass a size that their words have, or one that is refused before any other
        // access.
        unsafe { read_versioned(words.as_ptr().cast()) }
    }

    #[test]
    fn a_panic_becomes_a_code_and_poisons() {
        let mut poisoned = false;
        assert_eq!(guard(|| panic!("on purpose"), || poisoned = true), NEMESIA_ERR_PANIC);
        assert!(poisoned);
        assert_eq!(guard(|| Ok(NEMESIA_OK), || unreachable!()), NEMESIA_OK);
        assert_eq!(guard(|| Err(missing("x")), || unreachable!()), NEMESIA_ERR_ARGUMENT);
    }

    #[test]
    fn an_older_caller_leaves_new_fields_unset() {
        assert_eq!(read(&[16, 1]), Ok(Two { struct_size: 16, first: 1, second: u64::MAX }));
        assert_eq!(read(&[24, 1, 2]), Ok(Two { struct_size: 24, first: 1, second: 2 }));
    }

    #[test]
    fn a_newer_caller_is_refused_only_if_it_sets_a_new_field() {
        assert_eq!(read(&[32, 1, 2, u64::MAX]), Ok(Two { struct_size: 32, first: 1, second: 2 }));
        assert_eq!(read(&[32, 1, 2, 3]).unwrap_err().code(), NEMESIA_ERR_ARGUMENT);
    }

    #[test]
    fn callers_of_each_version_get_the_fields_of_their_version() {
        let value = Two { struct_size: 24, first: 1, second: 2 };
        for (size, expected) in [(16, [16, 1, 7, 7]), (24, [24, 1, 2, 7]), (32, [32, 1, 2, u64::MAX])] {
            let mut words = [size, 7, 7, 7];
            // SAFETY: there are as many words as the size states, and no reference to them is used meanwhile.
            unsafe { write_versioned(words.as_mut_ptr().cast(), &value) }.unwrap();
            assert_eq!(words, expected);
        }
        let mut nonsense = [15, 7, 7, 7];
        // SAFETY: refused before any write.
        let refused = unsafe { write_versioned(nonsense.as_mut_ptr().cast(), &value) };
        assert_eq!((refused.unwrap_err().code(), nonsense), (NEMESIA_ERR_ARGUMENT, [15, 7, 7, 7]));
    }

    #[test]
    fn an_impossible_struct_size_is_refused() {
        for size in [0, 15, 17, 23, 4097, u64::MAX] {
            assert_eq!(read(&[size]).unwrap_err().code(), NEMESIA_ERR_ARGUMENT, "{size}");
        }
    }
}
