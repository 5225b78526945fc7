//! Random bytes.

use super::call::{checked_long, uninterrupted};
use super::error::ShmError;

/// Returns random bytes from the kernel. At most 256, which the kernel returns whole or not at all.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], ShmError> {
    const { assert!(N <= 256) };
    let mut random = [0; N];
    // SAFETY: the kernel writes at most the length announced.
    uninterrupted(|| checked_long(unsafe { libc::getrandom(random.as_mut_ptr().cast(), N, 0) } as _))
        .map_err(|errno| ShmError::system("drawing random bytes", errno))?;
    Ok(random)
}
