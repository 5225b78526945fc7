//! Lists of message sizes: `0..8,1Ki,3M`.
#![forbid(unsafe_code)]

/// The largest message: both processes hold a few buffers of this size.
const MOST: u64 = 1 << 30;

/// Message sizes in bytes, ascending, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<usize>);

impl Sizes {
    /// Parses a list.
    ///
    /// # Errors
    /// The first item that is not a size or a range.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut sizes = Vec::new();
        for item in text.split(',').map(str::trim) {
            match item.split_once("..") {
                Some((low, high)) => sizes.extend(range(item, size(low, item)?, size(high, item)?)?),
                None => sizes.push(size(item, item)?),
            }
        }
        sizes.sort_unstable();
        sizes.dedup();
        sizes
            .into_iter()
            .map(|size| usize::try_from(size).map_err(|e| e.to_string()))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

fn size(text: &str, item: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let unit = match suffix {
        "" => 1,
        "K" => 1000,
        "M" => 1_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        _ => return Err(wrong(item)),
    };
    if number.is_empty() {
        return Err(wrong(item));
    }
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .filter(|size| *size <= MOST)
        .ok_or_else(|| format!("'{item}' is more than 1024Mi"))
}

fn wrong(item: &str) -> String {
    format!("'{item}' is neither a size (8, 4Ki, 1M) nor a range (0..4Mi)")
}

/// Returns the powers of two from `low` to `high`, and 0 if `low` is 0.
fn range(item: &str, low: u64, high: u64) -> Result<Vec<u64>, String> {
    let zero = (low == 0).then_some(0);
    let powers = (0..u64::BITS).map(|bits| 1 << bits).filter(|power| (low..=high).contains(power));
    let sizes: Vec<u64> = zero.into_iter().chain(powers).collect();
    if low > high || sizes.is_empty() {
        return Err(format!("there is no power of two in '{item}'"));
    }
    Ok(sizes)
}

/// Formats a size: 4Mi, 64, 1000.
pub(crate) fn short(size: usize) -> String {
    match size {
        0 => "0".to_owned(),
        _ if size.is_multiple_of(1 << 20) => format!("{}Mi", size >> 20),
        _ if size.is_multiple_of(1 << 10) => format!("{}Ki", size >> 10),
        _ => size.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_suffixes_and_ranges() {
        let parsed = |text| Sizes::parse(text).map(|sizes| sizes.0);
        assert_eq!(parsed("8"), Ok(vec![8]));
        assert_eq!(parsed("8, 0,8,1Ki,1K"), Ok(vec![0, 8, 1000, 1024]));
        assert_eq!(parsed("2M,1Mi"), Ok(vec![1 << 20, 2_000_000]));
        assert_eq!(parsed("0..8"), Ok(vec![0, 1, 2, 4, 8]));
        assert_eq!(parsed("3..20,7"), Ok(vec![4, 7, 8, 16]));
        assert_eq!(parsed("0..0"), Ok(vec![0]));
        assert_eq!(parsed("1024Mi"), Ok(vec![1 << 30]));
        assert_eq!(parsed("0..4Mi").unwrap().len(), 24);
    }

    #[test]
    fn nonsense_is_named() {
        for text in [
            "",
            "foo",
            "8,",
            ",8",
            "0..",
            "..8",
            "..",
            "-1",
            "+1",
            "1.5",
            "4k",
            "4Gi",
            "Ki",
            "8..4",
            "5..7",
            "1025Mi",
            "99999999999999999999",
            "18446744073709551615Mi",
            "1..2..4",
            "0x10",
            "²",
        ] {
            let error = Sizes::parse(text).unwrap_err();
            assert!(error.contains('\''), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_print_as_they_are_written() {
        for text in ["0", "1", "1000", "1023", "1Ki", "1025", "96Ki", "1Mi", "1024Mi"] {
            assert_eq!(short(Sizes::parse(text).unwrap().0[0]), text);
        }
    }
}
