//! Arithmetic of the atomic operations, on values represented as bits.
#![forbid(unsafe_code)]

use crate::wire::rma::{Datatype, Reduction};

/// Returns the value combined with an operand. Four-byte types use the low halves. If the type does not allow
/// the reduction, the value is unchanged.
#[inline]
pub fn combine(datatype: Datatype, reduction: Reduction, value: u64, operand: u64) -> u64 {
    match datatype {
        Datatype::I32 => u64::from(i32_(reduction, value as i32, operand as i32).cast_unsigned()),
        Datatype::U32 => u64::from(u32_(reduction, value as u32, operand as u32)),
        Datatype::I64 => i64_(reduction, value.cast_signed(), operand.cast_signed()).cast_unsigned(),
        Datatype::U64 => u64_(reduction, value, operand),
        Datatype::F32 => {
            let (value, operand) = (f32::from_bits(value as u32), f32::from_bits(operand as u32));
            u64::from(f32_(reduction, value, operand).to_bits())
        }
        Datatype::F64 => f64_(reduction, f64::from_bits(value), f64::from_bits(operand)).to_bits(),
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
            }
        }
    };
}

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
}
