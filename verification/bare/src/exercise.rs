//! The calls of a kernel or a unikernel: the core's algorithms on memory that the caller lends.

use core::ptr::NonNull;
use core::time::Duration;

use nemesia_core::job_key::{CallTerms, Challenges, JobKey, KEY_BYTES, Nonces};
use nemesia_core::shared::ring::{ByteReader, ByteRing, ByteWriter, RingFault};
use nemesia_core::sync::{PayloadMut, Word64};
use nemesia_core::wire::hello::CALL_BYTES;

/// The result if a `ring` took or gave wrong bytes.
const BROKEN: u64 = u64::MAX;

/// Runs the core on `length` bytes at `memory`. Returns a value that depends on everything that the core did,
/// so that nothing can be optimised away; `u64::MAX` if the core refused.
///
/// # Safety
/// `memory` points to `length` bytes that nothing else uses until this function returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_bare_exercise(memory: *mut u8, length: usize) -> u64 {
    let Some(base) = NonNull::new(memory) else { return BROKEN };
    // SAFETY: the caller lends the range until this returns, and no reference to it is made here.
    let bytes = unsafe { PayloadMut::from_raw(base, length) };
    let Ok(passed) = ring(bytes) else { return BROKEN };
    // SAFETY: as above; the ring no longer uses the range.
    let exchanged = unsafe { crate::world::exchange(base, length) };
    let passed = passed.wrapping_add(proof(length as u64));
    exchanged.map_or(BROKEN, |bytes| bytes.wrapping_add(passed))
}

/// Proves the knowledge of a key to itself.
fn proof(nonce: u64) -> u64 {
    let (key, seed, now) = (JobKey::from_bytes([1; KEY_BYTES]), [nonce as u8; KEY_BYTES], Duration::ZERO);
    let challenge = Challenges::new(seed).issue(now);
    let (world, caller, callee) = (1, [2; CALL_BYTES], 3);
    let terms =
        CallTerms { world, challenge, nonce, caller, caller_address: &[], callee, callee_address: &[4] };
    let proof = key.request_proof(&terms);
    let answer = key.answer_proof(&proof, nonce, &[5]);
    let holds = key.accepts_request(&terms, &proof) && key.accepts_answer(&proof, nonce, &[5], &answer);
    if holds { Nonces::new(seed).draw() } else { BROKEN }
}

/// Passes `length` through a byte ring over all of the memory.
fn ring(bytes: PayloadMut<'_>) -> Result<u64, RingFault> {
    let (written, read) = (Word64::new(0), Word64::new(0));
    let sent = (bytes.len() as u64).to_le_bytes();
    let Some(ring) = ByteRing::new(bytes, &written, &read) else { return Ok(BROKEN) };
    let mut received = [0; 8];
    let put = ByteWriter::new(ring).write(&sent)?;
    let got = ByteReader::new(ring).read(&mut received)?;
    Ok(if put == got { u64::from_le_bytes(received) } else { BROKEN })
}
