//! What every function does at the boundary: pointers in, pointers out, and no panic across.

use std::any::Any;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::slice;

use crate::status::{Fault, NEMESIA_ERR_PANIC, NEMESIA_ERR_TRUNCATED, NEMESIA_OK};

/// More bytes than any future version of a structure will have: a larger `struct_size` was never set.
const LONGEST_STRUCT: usize = 4096;

/// A structure that may grow at its end in later versions of the header.
///
/// # Safety
/// `repr(C)` without padding, begins with a `u64` that says how many bytes the caller's version has, and every
/// pattern of bytes is a valid value.
pub(crate) unsafe trait Versioned: Copy {
    /// Its name in C.
    const NAME: &'static str;
    /// Bytes in the first version.
    const FIRST: usize;
    /// The byte that fields have which the caller's version does not know.
    const UNSET: u8;
}

/// An output of the caller's; nothing is written to it unless [`Out::write`] is called.
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// One that has to be there.
    ///
    /// # Safety
    /// `pointer` is null, or points to a `T` of the caller's that may be written until the call ends.
    pub(crate) unsafe fn required(pointer: *mut T, name: &str) -> Result<Self, Fault> {
        if pointer.is_null() { Err(missing(name)) } else { Ok(Self(pointer)) }
    }

    /// One that the caller may leave out.
    ///
    /// # Safety
    /// See [`Out::required`].
    pub(crate) unsafe fn optional(pointer: *mut T) -> Self {
        Self(pointer)
    }

    /// One of our own.
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

/// Runs what may fail or panic, and makes a code of it. `poison` is called if it panicked.
#[inline]
pub(crate) fn guard(work: impl FnOnce() -> Result<i32, Fault>, poison: impl FnOnce()) -> i32 {
    // What a panic may leave half done is behind `poison`, or was not handed out yet.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(code)) => code,
        Ok(Err(fault)) => fault.report(),
        Err(panic) => {
            poison();
            panicked(panic)
        }
    }
}

/// Reports a panic. What it carried is not dropped: that could panic again.
#[cold]
pub(crate) fn panicked(panic: Box<dyn Any + Send>) -> i32 {
    let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "no text".to_owned(),
    };
    std::mem::forget(panic);
    Fault::new(NEMESIA_ERR_PANIC, format!("nemesia panicked, please report it: {text}")).report()
}

/// Makes memory of the caller's initialised by the rules of Rust: what C calls a buffer may be fresh from `malloc`, and
/// the layers below make slices of bytes of it, which may not be of uninitialised memory. Nothing is executed. The
/// block of assembly gets the address and says that it may access memory, so the compiler has to assume that it has
/// written the bytes, namely those that the memory happens to hold. Nothing here depends on what they are: they are
/// only written before they are read.
#[inline(always)]
pub(crate) fn settle<T>(base: *const T) {
    // SAFETY: the block is empty. What it may be taken to do, to write the bytes that are there, the caller of each
    // function with a buffer allows for buffers that it fills; others are unchanged by it.
    unsafe { std::arch::asm!("/* {0} */", in(reg) base, options(nostack, preserves_flags)) };
}

/// Checks a buffer of the caller's: it is there, unless it is empty, and no longer than memory can be. Its bytes, and
/// those of a list's runs, are initialised from now on ([`settle`]).
#[inline]
pub(crate) fn check_buffer<T>(base: *const T, count: usize, name: &str) -> Result<(), Fault> {
    if base.is_null() && count > 0 {
        return Err(missing(name));
    }
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Fault::argument(format!("{name} has {count} elements: no buffer is that long")));
    }
    settle(base);
    Ok(())
}

/// The caller's bytes; null is allowed if there are none.
///
/// # Safety
/// There are `len` bytes at `buffer` that stay as they are for as long as the result is used, unless it is 0.
#[inline]
pub(crate) unsafe fn bytes<'a>(buffer: *const c_void, len: usize, name: &str) -> Result<&'a [u8], Fault> {
    check_buffer(buffer.cast::<u8>(), len, name)?;
    let base = NonNull::new(buffer.cast_mut().cast::<u8>()).unwrap_or(NonNull::dangling());
    // SAFETY: checked above: null only if it is empty; the rest is the caller's promise.
    Ok(unsafe { slice::from_raw_parts(base.as_ptr(), len) })
}

/// The caller's room for bytes; null is allowed if there is none.
///
/// # Safety
/// There are `capacity` bytes at `buffer`, initialised or not, which nothing else uses for as long as the result is
/// used, unless it is 0.
#[inline]
pub(crate) unsafe fn room<'a>(
    buffer: *mut c_void,
    capacity: usize,
    name: &str,
) -> Result<&'a mut [u8], Fault> {
    check_buffer(buffer.cast::<u8>(), capacity, name)?;
    let base = NonNull::new(buffer.cast::<u8>()).unwrap_or(NonNull::dangling());
    // SAFETY: checked above: null only if it is empty, and initialised by `settle`; the rest is the caller's promise.
    Ok(unsafe { slice::from_raw_parts_mut(base.as_ptr(), capacity) })
}

/// The caller's array; any address will do for none.
///
/// # Safety
/// There are `count` elements at `base`, initialised unless `T` need not be, that nothing else uses for as long as the
/// result is used, unless it is 0.
pub(crate) unsafe fn lent<'a, T>(base: *mut T, count: usize) -> &'a mut [T] {
    if count == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts_mut(base, count) }
}

/// A text of the caller's.
///
/// # Safety
/// `pointer` is null, or points to a terminated text that stays as it is while the result is used.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Fault> {
    if pointer.is_null() {
        return Err(missing(name));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Fault::argument(format!("{name} is not UTF-8: {}", text.to_string_lossy())))
}

/// Copies a text to the caller, terminated, as far as there is room, and its whole length.
///
/// # Safety
/// `out_text` is null, or has room for `bytes` bytes; `out_len` is null or can be written.
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
        // SAFETY: `fits` bytes and the end are no more than `bytes`, for which the caller has room.
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

/// Copies a structure of the caller's, of whatever version.
///
/// # Safety
/// `pointer` is null, or points to as many readable bytes as the `struct_size` at their beginning says.
pub(crate) unsafe fn read_versioned<T: Versioned>(pointer: *const T) -> Result<T, Fault> {
    if pointer.is_null() {
        return Err(missing(T::NAME));
    }
    // SAFETY: it begins with its size, which is there in every version.
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
    // SAFETY: as many bytes as `copy` has.
    unsafe { ptr::write_bytes(copy.as_mut_ptr().cast::<u8>(), T::UNSET, size_of::<T>()) };
    // SAFETY: `known` is no longer than `copy`, which is our own.
    unsafe { ptr::copy_nonoverlapping(known.as_ptr(), copy.as_mut_ptr().cast::<u8>(), known.len()) };
    // SAFETY: every byte is initialised, and every pattern is a valid value: the promise of `Versioned`.
    Ok(unsafe { copy.assume_init() })
}

/// Copies a structure to the caller, as far as the version goes that its `struct_size` names; fields beyond what this
/// library knows become [`Versioned::UNSET`]. The size stays as it is.
///
/// # Safety
/// `pointer` is null, or points to as many bytes of the caller's, readable and writable, as the `struct_size` at their
/// beginning says.
pub(crate) unsafe fn write_versioned<T: Versioned>(pointer: *mut T, value: &T) -> Result<(), Fault> {
    if pointer.is_null() {
        return Err(missing(T::NAME));
    }
    // SAFETY: it begins with its size, which is there in every version.
    let given = unsafe { pointer.cast::<u64>().read() };
    let size = usize::try_from(given).unwrap_or(usize::MAX);
    check_size::<T>(size)?;
    let known = size.min(size_of::<T>()) - size_of::<u64>();
    let after = size_of::<u64>();
    // SAFETY: the caller's promise: `size` bytes can be written, of which the first hold the size; of ours there are
    // `known` after that.
    unsafe {
        let (from, to) = (ptr::from_ref(value).cast::<u8>().add(after), pointer.cast::<u8>().add(after));
        ptr::copy_nonoverlapping(from, to, known);
        ptr::write_bytes(to.add(known), T::UNSET, size - after - known);
    }
    Ok(())
}

/// Whether a caller of some version could have set this size.
fn check_size<T: Versioned>(size: usize) -> Result<(), Fault> {
    if (T::FIRST..=LONGEST_STRUCT).contains(&size) {
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
        // SAFETY: the tests give a size that their words have, or one that is refused at sight.
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
    fn a_newer_caller_is_refused_only_if_it_uses_what_is_new() {
        assert_eq!(read(&[32, 1, 2, u64::MAX]), Ok(Two { struct_size: 32, first: 1, second: 2 }));
        assert_eq!(read(&[32, 1, 2, 3]).unwrap_err().code(), NEMESIA_ERR_ARGUMENT);
    }

    #[test]
    fn callers_of_each_version_get_what_their_structure_has_room_for() {
        let value = Two { struct_size: 24, first: 1, second: 2 };
        for (size, expected) in [(16, [16, 1, 7, 7]), (24, [24, 1, 2, 7]), (32, [32, 1, 2, u64::MAX])] {
            let mut words = [size, 7, 7, 7];
            // SAFETY: there are as many words as the size says, and no reference to them is used meanwhile.
            unsafe { write_versioned(words.as_mut_ptr().cast(), &value) }.unwrap();
            assert_eq!(words, expected);
        }
        let mut nonsense = [15, 7, 7, 7];
        // SAFETY: refused at sight.
        let refused = unsafe { write_versioned(nonsense.as_mut_ptr().cast(), &value) };
        assert_eq!((refused.unwrap_err().code(), nonsense), (NEMESIA_ERR_ARGUMENT, [15, 7, 7, 7]));
    }

    #[test]
    fn a_size_that_nobody_set_is_refused() {
        for size in [0, 15, 4097, u64::MAX] {
            assert_eq!(read(&[size]).unwrap_err().code(), NEMESIA_ERR_ARGUMENT, "{size}");
        }
    }
}
