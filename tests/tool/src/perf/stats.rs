//! Percentiles and medians.
#![forbid(unsafe_code)]

/// Returns the smallest value that at least `percent` per cent of all values do not exceed; 0 if there are
/// none.
///
/// Sorts the values.
pub(crate) fn percentile(values: &mut [u64], percent: u32) -> u64 {
    values.sort_unstable();
    let rank = (values.len() * percent as usize).div_ceil(100).clamp(1, values.len().max(1));
    values.get(rank - 1).copied().unwrap_or(0)
}

/// Returns the middle value, or the mean of the two in the middle; 0 if there are none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle.wrapping_sub(1)), sorted.get(middle)) {
        (Some(low), Some(high)) if sorted.len().is_multiple_of(2) => f64::midpoint(*low, *high),
        (_, Some(value)) => *value,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let mut values: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(percentile(&mut values, 50), 50);
        assert_eq!(percentile(&mut values, 99), 99);
        assert_eq!(percentile(&mut values, 100), 100);
        assert_eq!(percentile(&mut values, 0), 1);
        assert_eq!(percentile(&mut [7], 50), 7);
        assert_eq!(percentile(&mut [7], 99), 7);
        assert_eq!(percentile(&mut [9, 7], 50), 7);
        assert_eq!(percentile(&mut [9, 7], 99), 9);
        assert_eq!(percentile(&mut [], 50), 0);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[4.0]), 4.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
    }
}
