//! The waiter list: the threads that wait, and which of them is the driver. The lock protects it.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

/// The set of threads to wake. It may include other threads whose slots share a bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "threads that are not woken keep sleeping"]
pub struct Bits(u32);

impl Bits {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// Returns the set with the thread in this slot.
    pub const fn of(seat: usize) -> Self {
        Self(1 << (seat % 32))
    }

    /// Returns the union.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the set as a mask.
    pub const fn mask(self) -> u32 {
        self.0
    }
}

/// A waiting thread.
#[derive(Debug)]
pub struct Seat<T> {
    /// The entry: what the thread waits for.
    ticket: T,
    /// Whether the wait has ended successfully.
    served: bool,
    /// Number in the order of arrival.
    number: u64,
}

/// The waiting threads. `S` lends a slot for each; free slots are `None`. The storage may grow.
#[derive(Debug)]
pub struct Roster<S> {
    seats: S,
    driver: Option<usize>,
    next: u64,
    /// Number of occupied slots.
    count: usize,
}

impl<S> Roster<S> {
    /// Returns an empty waiter list.
    pub const fn new(seats: S) -> Self {
        Self { seats, driver: None, next: 0, count: 0 }
    }

    /// Returns the number of occupied slots.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Returns the slots, so that their owner can let them grow. Occupied slots keep their index.
    pub const fn seats_mut(&mut self) -> &mut S {
        &mut self.seats
    }

    /// Adds a waiting thread and returns its slot.
    ///
    /// # Errors
    /// The entry, if every slot is occupied.
    pub fn join<T>(&mut self, ticket: T) -> Result<usize, T>
    where
        S: BorrowMut<[Option<Seat<T>>]>,
    {
        let seats = self.seats.borrow_mut();
        let Some(at) = seats.iter().position(Option::is_none) else { return Err(ticket) };
        seats[at] = Some(Seat { ticket, served: false, number: self.next });
        self.next += 1;
        self.count += 1;
        Ok(at)
    }

    /// Returns whether this thread is the driver. If there is no driver, the thread becomes it.
    pub fn drives(&mut self, seat: usize) -> bool {
        *self.driver.get_or_insert(seat) == seat
    }

    /// Returns the entry of this thread.
    pub fn ticket<T>(&mut self, seat: usize) -> Option<&mut T>
    where
        S: BorrowMut<[Option<Seat<T>>]>,
    {
        self.seats.borrow_mut().get_mut(seat)?.as_mut().map(|seat| &mut seat.ticket)
    }

    /// Returns whether the wait of this thread has ended successfully.
    pub fn is_served<T>(&self, seat: usize) -> bool
    where
        S: BorrowMut<[Option<Seat<T>>]>,
    {
        self.seats.borrow().get(seat).and_then(Option::as_ref).is_some_and(|seat| seat.served)
    }

    /// Calls `serve` for each waiting thread, after progress was made, to test whether its wait has
    /// ended. Returns the threads to wake, and whether the driver, which may sleep elsewhere, is
    /// among them.
    pub fn serve<T>(&mut self, mut serve: impl FnMut(&mut T) -> bool) -> (Bits, bool)
    where
        S: BorrowMut<[Option<Seat<T>>]>,
    {
        let (mut bits, mut drives) = (Bits::NONE, false);
        for (at, seat) in self.seats.borrow_mut().iter_mut().enumerate() {
            if let Some(seat) = seat.as_mut().filter(|seat| !seat.served)
                && serve(&mut seat.ticket)
            {
                seat.served = true;
                bits = bits.and(Bits::of(at));
                drives |= self.driver == Some(at);
            }
        }
        (bits, drives)
    }

    /// Removes a thread. If it was the driver, the thread that has waited longest becomes the
    /// driver and must be woken.
    pub fn leave<T>(&mut self, seat: usize) -> (Option<T>, Bits)
    where
        S: BorrowMut<[Option<Seat<T>>]>,
    {
        let seats = self.seats.borrow_mut();
        let left = seats.get_mut(seat).and_then(Option::take);
        self.count -= usize::from(left.is_some());
        let mut bits = Bits::NONE;
        if self.driver == Some(seat) {
            let waiting = |seat: &Option<Seat<T>>| seat.as_ref().filter(|it| !it.served).map(|it| it.number);
            let numbers = seats.iter().enumerate().filter_map(|(at, seat)| Some((waiting(seat)?, at)));
            self.driver = numbers.min().map(|(_, at)| at);
            bits = self.driver.map_or(Bits::NONE, Bits::of);
        }
        (left.map(|seat| seat.ticket), bits)
    }
}
