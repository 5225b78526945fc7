//! Arithmetic of the atomic operations, on values represented as bits.
#![forbid(unsafe_code)]

use core::cmp::Ordering;

use crate::wire::rma::{Comparison, Datatype, Reduction};

/// Returns the value combined with an operand. Shorter types use the low bytes, and the others are 0 in the result. If
/// the type does not allow the reduction, the value is unchanged.
#[inline]
pub fn combine(datatype: Datatype, reduction: Reduction, value: u64, operand: u64) -> u64 {
    match datatype {
        Datatype::I32 => u64::from(i32_(reduction, value as i32, operand as i32).cast_unsigned()),
        Datatype::U32 => u64::from(u32_(reduction, value as u32, operand as u32)),
        Datatype::I8 => u64::from(i8_(reduction, value as i8, operand as i8).cast_unsigned()),
        Datatype::U8 => u64::from(u8_(reduction, value as u8, operand as u8)),
        Datatype::I16 => u64::from(i16_(reduction, value as i16, operand as i16).cast_unsigned()),
        Datatype::U16 => u64::from(u16_(reduction, value as u16, operand as u16)),
        Datatype::I64 => i64_(reduction, value.cast_signed(), operand.cast_signed()).cast_unsigned(),
        Datatype::U64 => u64_(reduction, value, operand),
        Datatype::F32 => {
            let (value, operand) = (f32::from_bits(value as u32), f32::from_bits(operand as u32));
            u64::from(f32_(reduction, value, operand).to_bits())
        }
        Datatype::F64 => f64_(reduction, f64::from_bits(value), f64::from_bits(operand)).to_bits(),
    }
}

/// Returns what a compare and swap makes of the value. Shorter types use the low bytes, and the others are 0 in the
/// result. If the type does not allow the comparison, the value is unchanged.
#[inline]
pub fn swap(datatype: Datatype, comparison: Comparison, value: u64, [expected, new]: [u64; 2]) -> u64 {
    let low = u64::MAX >> (64 - 8 * datatype.bytes());
    let (value, expected, new) = (value & low, expected & low, new & low);
    if comparison == Comparison::Masked {
        let mask = if datatype.allows_comparison(comparison) { expected } else { 0 };
        return new & mask | value & !mask;
    }
    if is_so(datatype, comparison, expected, value) { new } else { value }
}

fn is_so(datatype: Datatype, comparison: Comparison, expected: u64, value: u64) -> bool {
    let order = match datatype {
        Datatype::U8 | Datatype::U16 | Datatype::U32 | Datatype::U64 => expected.partial_cmp(&value),
        Datatype::I8 => (expected as i8).partial_cmp(&(value as i8)),
        Datatype::I16 => (expected as i16).partial_cmp(&(value as i16)),
        Datatype::I32 => (expected as i32).partial_cmp(&(value as i32)),
        Datatype::I64 => expected.cast_signed().partial_cmp(&value.cast_signed()),
        Datatype::F32 => f32::from_bits(expected as u32).partial_cmp(&f32::from_bits(value as u32)),
        Datatype::F64 => f64::from_bits(expected).partial_cmp(&f64::from_bits(value)),
    };
    match comparison {
        Comparison::Equal => expected == value,
        Comparison::NotEqual => expected != value,
        Comparison::LessOrEqual => order.is_some_and(Ordering::is_le),
        Comparison::Less => order.is_some_and(Ordering::is_lt),
        Comparison::GreaterOrEqual => order.is_some_and(Ordering::is_ge),
        Comparison::Greater => order.is_some_and(Ordering::is_gt),
        Comparison::Masked => true,
    }
}

macro_rules! integer {
    ($name:ident, $type:ty) => {
        #[inline]
        fn $name(reduction: Reduction, value: $type, operand: $type) -> $type {
            match reduction {
                Reduction::Sum => value.wrapping_add(operand),
                Reduction::Product => value.wrapping_mul(operand),
                Reduction::Min => value.min(operand),
                Reduction::Max => value.max(operand),
                Reduction::And => value & operand,
                Reduction::Or => value | operand,
                Reduction::Xor => value ^ operand,
                Reduction::Replace => operand,
                Reduction::Nothing => value,
                Reduction::LogicalAnd => (value != 0 && operand != 0).into(),
                Reduction::LogicalOr => (value != 0 || operand != 0).into(),
                Reduction::LogicalXor => ((value != 0) != (operand != 0)).into(),
            }
        }
    };
}

macro_rules! float {
    ($name:ident, $type:ty) => {
        #[inline]
        fn $name(reduction: Reduction, value: $type, operand: $type) -> $type {
            match reduction {
                Reduction::Sum => value + operand,
                Reduction::Product => value * operand,
                Reduction::Min => value.min(operand),
                Reduction::Max => value.max(operand),
                Reduction::Replace => operand,
                Reduction::And | Reduction::Or | Reduction::Xor | Reduction::Nothing => value,
                Reduction::LogicalAnd => u8::from(value != 0.0 && operand != 0.0).into(),
                Reduction::LogicalOr => u8::from(value != 0.0 || operand != 0.0).into(),
                Reduction::LogicalXor => u8::from((value != 0.0) != (operand != 0.0)).into(),
            }
        }
    };
}

integer!(i8_, i8);
integer!(u8_, u8);
integer!(i16_, i16);
integer!(u16_, u16);
integer!(i32_, i32);
integer!(u32_, u32);
integer!(i64_, i64);
integer!(u64_, u64);
float!(f32_, f32);
float!(f64_, f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_wrap_and_are_compared_with_their_sign() {
        let minus = |value: i32| u64::from(value.cast_unsigned());
        assert_eq!(combine(Datatype::I32, Reduction::Sum, minus(i32::MAX), 1), minus(i32::MIN));
        assert_eq!(combine(Datatype::I32, Reduction::Min, 3, minus(-1)), minus(-1));
        assert_eq!(combine(Datatype::U32, Reduction::Min, 3, minus(-1)), 3);
        assert_eq!(combine(Datatype::I64, Reduction::Max, u64::MAX, 5), 5);
        assert_eq!(combine(Datatype::U64, Reduction::Max, u64::MAX, 5), u64::MAX);
        assert_eq!(combine(Datatype::U64, Reduction::Product, 1 << 63, 2), 0);
        for datatype in [Datatype::I64, Datatype::U64] {
            assert_eq!(combine(datatype, Reduction::And, 0b1100, 0b1010), 0b1000);
            assert_eq!(combine(datatype, Reduction::Or, 0b1100, 0b1010), 0b1110);
            assert_eq!(combine(datatype, Reduction::Xor, 0b1100, 0b1010), 0b0110);
        }
    }

    #[test]
    fn floats_are_combined_as_floats() {
        let bits = f64::to_bits;
        assert_eq!(combine(Datatype::F64, Reduction::Sum, bits(1.5), bits(2.25)), bits(3.75));
        assert_eq!(combine(Datatype::F64, Reduction::Min, bits(-1.0), bits(2.0)), bits(-1.0));
        assert_eq!(combine(Datatype::F64, Reduction::Max, bits(f64::NAN), bits(2.0)), bits(2.0));
        let single = |value: f32| u64::from(value.to_bits());
        assert_eq!(combine(Datatype::F32, Reduction::Product, single(1.5), single(2.0)), single(3.0));
    }

    #[test]
    fn replace_and_nothing_work_for_every_type() {
        for datatype in Datatype::ALL {
            assert_eq!(combine(datatype, Reduction::Replace, 1, 2), 2);
            assert_eq!(combine(datatype, Reduction::Nothing, 1, 2), 1);
        }
    }

    /// The bits of a small number in a type.
    fn bits(datatype: Datatype, number: i8) -> u64 {
        let low = u64::MAX >> (64 - 8 * datatype.bytes());
        match datatype {
            Datatype::F32 => u64::from(f32::from(number).to_bits()),
            Datatype::F64 => f64::from(number).to_bits(),
            _ => i64::from(number).cast_unsigned() & low,
        }
    }

    #[test]
    fn logical_operations_give_one_or_zero_in_every_type() {
        for datatype in Datatype::ALL {
            let number = |number| bits(datatype, number);
            for (value, operand, and, or, xor) in
                [(0, 0, 0, 0, 0), (0, 6, 0, 1, 1), (4, 0, 0, 1, 1), (4, 3, 1, 1, 0)]
            {
                let is = |reduction| combine(datatype, reduction, number(value), number(operand));
                assert_eq!(is(Reduction::LogicalAnd), number(and), "{datatype:?}");
                assert_eq!(is(Reduction::LogicalOr), number(or), "{datatype:?}");
                assert_eq!(is(Reduction::LogicalXor), number(xor), "{datatype:?}");
            }
        }
        // The upper bits belong to no value.
        assert_eq!(combine(Datatype::U8, Reduction::LogicalOr, 0x100, 0xff00), 0);
        assert_eq!(combine(Datatype::U8, Reduction::Sum, 0x1ff, 2), 1);
        assert_eq!(combine(Datatype::I16, Reduction::Max, 0xffff, 0), 0);
        assert_eq!(combine(Datatype::I8, Reduction::Min, 0x80, 0x7f), 0x80);
        assert_eq!(combine(Datatype::F64, Reduction::LogicalAnd, (-0.0_f64).to_bits(), 1.0_f64.to_bits()), 0);
    }

    #[test]
    fn comparisons_are_those_of_the_type() {
        for datatype in Datatype::ALL {
            let signed = !matches!(datatype, Datatype::U8 | Datatype::U16 | Datatype::U32 | Datatype::U64);
            for (expected, value) in [(1, 1), (1, 2), (2, 1), (-1, 1), (1, -1), (-2, -1)] {
                let order =
                    |one: i8, two: i8| if signed { one.cmp(&two) } else { (one as u8).cmp(&(two as u8)) };
                let order = order(expected, value);
                let cases = [
                    (Comparison::Equal, order.is_eq()),
                    (Comparison::NotEqual, order.is_ne()),
                    (Comparison::LessOrEqual, order.is_le()),
                    (Comparison::Less, order.is_lt()),
                    (Comparison::GreaterOrEqual, order.is_ge()),
                    (Comparison::Greater, order.is_gt()),
                ];
                let [expected, value, new] = [expected, value, 9].map(|number| bits(datatype, number));
                for (comparison, swaps) in cases {
                    let is = swap(datatype, comparison, value, [expected, new]);
                    let what = (datatype, comparison, expected, value);
                    assert_eq!(is, if swaps { new } else { value }, "{what:?}");
                }
            }
        }
        let nan = f64::NAN.to_bits();
        let with_nan = |comparison| swap(Datatype::F64, comparison, nan, [nan, 7]);
        assert_eq!(with_nan(Comparison::Equal), 7, "the bits are equal");
        assert_eq!([with_nan(Comparison::LessOrEqual), with_nan(Comparison::Greater)], [nan, nan]);
        let narrow = swap(Datatype::U8, Comparison::Equal, 5, [0xf05, 0xf07]);
        assert_eq!(narrow, 7, "the upper bits belong to no value");
    }

    #[test]
    fn a_masked_swap_replaces_the_bits_of_the_mask() {
        let masked = |datatype, value, mask, new| swap(datatype, Comparison::Masked, value, [mask, new]);
        assert_eq!(masked(Datatype::U64, 0xffff, 0xff0, 0x1234_5678), 0xf67f);
        assert_eq!(masked(Datatype::I8, 0xff, 0xff0f, 0x120), 0xf0);
        assert_eq!(masked(Datatype::F64, 3, u64::MAX, 9), 3, "undefined for floats");
    }
}
