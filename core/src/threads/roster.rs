//! The threads that wait, and which of them is the driver. Behind the lock.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

/// Which threads to wake: those in these seats, and perhaps some whose seats share a bit with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "threads that are not woken sleep on"]
pub struct Bits(u32);

impl Bits {
    /// Nobody.
    pub const NONE: Self = Self(0);

    /// The thread in this seat.
    pub const fn of(seat: usize) -> Self {
        Self(1 << (seat % 32))
    }

    /// Both.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// As a mask.
    pub const fn mask(self) -> u32 {
        self.0
    }
}

/// A thread that waits.
#[derive(Debug)]
pub struct Seat<T> {
    /// What it waits for.
    ticket: T,
    /// It has got it.
    served: bool,
    /// When it came.
    number: u64,
}

/// Those who wait. `S` lends a seat for each, free ones being `None`; it may grow.
#[derive(Debug)]
pub struct Roster<S> {
    seats: S,
    driver: Option<usize>,
    next: u64,
    /// Seats that are taken.
    count: usize,
}

impl<S> Roster<S> {
    /// Nobody waits.
    pub const fn new(seats: S) -> Self {
        Self { seats, driver: None, next: 0, count: 0 }
    }

    /// Seats that are taken.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The seats, for their owner to let them grow. Taken ones stay where they are.
    pub const fn seats_mut(&mut self) -> &mut S {
        &mut self.seats
    }

    /// A thread begins to wait. Returns its seat, or the ticket when there is none.
    ///
    /// # Errors
    /// Every seat is taken.
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

    /// Whether this thread is the driver. It becomes that if nobody is.
    pub fn drives(&mut self, seat: usize) -> bool {
        *self.driver.get_or_insert(seat) == seat
    }

    /// What this thread waits for.
    pub fn ticket<T>(&mut self, seat: usize) -> Option<&mut T>
    where
        S: BorrowMut<[Option<Seat<T>>]>,
    {
        self.seats.borrow_mut().get_mut(seat)?.as_mut().map(|seat| &mut seat.ticket)
    }

    /// Whether this thread has been served.
    pub fn is_served<T>(&self, seat: usize) -> bool
    where
        S: BorrowMut<[Option<Seat<T>>]>,
    {
        self.seats.borrow().get(seat).and_then(Option::as_ref).is_some_and(|seat| seat.served)
    }

    /// After something was done: asks `serve` for each thread that still waits whether it has got now what it waits for.
    /// Returns whom to wake, and whether the driver, which may sleep elsewhere, is among them.
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

    /// A thread waits no longer. If it was the driver, the one that has waited longest is that now, and has to be woken.
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
