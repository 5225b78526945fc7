//! An AVL tree from addresses to entries, as other registration caches have. The benchmark compares it with
//! ours.

/// Stands for no node.
const NONE: usize = usize::MAX;

struct Node {
    start: u64,
    id: u32,
    height: i32,
    children: [usize; 2],
}

/// The tree.
pub(crate) struct Tree {
    nodes: Vec<Node>,
    free: Vec<usize>,
    root: usize,
}

impl Tree {
    pub(crate) fn new() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), root: NONE }
    }

    /// Returns the entry with the largest start at or below this address.
    pub(crate) fn find(&self, start: u64) -> Option<u32> {
        let (mut at, mut best) = (self.root, None);
        while at != NONE {
            let node = &self.nodes[at];
            if node.start <= start {
                best = Some(node);
                at = node.children[1];
            } else {
                at = node.children[0];
            }
        }
        best.map(|node| node.id)
    }

    pub(crate) fn insert(&mut self, start: u64, id: u32) {
        let node = Node { start, id, height: 1, children: [NONE; 2] };
        let fresh = match self.free.pop() {
            Some(at) => {
                self.nodes[at] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.root = self.insert_at(self.root, fresh);
    }

    pub(crate) fn remove(&mut self, start: u64) {
        self.root = self.remove_at(self.root, start);
    }

    fn height(&self, at: usize) -> i32 {
        if at == NONE { 0 } else { self.nodes[at].height }
    }

    fn lean(&self, at: usize) -> i32 {
        let [left, right] = self.nodes[at].children;
        self.height(left) - self.height(right)
    }

    fn measure(&mut self, at: usize) {
        let [left, right] = self.nodes[at].children;
        self.nodes[at].height = 1 + self.height(left).max(self.height(right));
    }

    /// Rotates a node down to `side`; its child on the other side takes its place.
    fn rotate(&mut self, at: usize, side: usize) -> usize {
        let up = self.nodes[at].children[1 - side];
        self.nodes[at].children[1 - side] = self.nodes[up].children[side];
        self.nodes[up].children[side] = at;
        self.measure(at);
        self.measure(up);
        up
    }

    fn balance(&mut self, at: usize) -> usize {
        self.measure(at);
        let lean = self.lean(at);
        if lean.abs() < 2 {
            return at;
        }
        // The heavy side, and the direction of the rotation.
        let (heavy, to) = if lean > 0 { (0, 1) } else { (1, 0) };
        let child = self.nodes[at].children[heavy];
        if self.lean(child) * lean.signum() < 0 {
            self.nodes[at].children[heavy] = self.rotate(child, heavy);
        }
        self.rotate(at, to)
    }

    fn insert_at(&mut self, at: usize, fresh: usize) -> usize {
        if at == NONE {
            return fresh;
        }
        let side = usize::from(self.nodes[fresh].start > self.nodes[at].start);
        let child = self.insert_at(self.nodes[at].children[side], fresh);
        self.nodes[at].children[side] = child;
        self.balance(at)
    }

    fn remove_at(&mut self, at: usize, start: u64) -> usize {
        if at == NONE {
            return NONE;
        }
        if self.nodes[at].start != start {
            let side = usize::from(start > self.nodes[at].start);
            let child = self.remove_at(self.nodes[at].children[side], start);
            self.nodes[at].children[side] = child;
            return self.balance(at);
        }
        match self.nodes[at].children {
            [NONE, other] | [other, NONE] => {
                self.free.push(at);
                other
            }
            [_, right] => {
                let mut least = right;
                while self.nodes[least].children[0] != NONE {
                    least = self.nodes[least].children[0];
                }
                let Node { start, id, .. } = self.nodes[least];
                let right = self.remove_at(right, start);
                let node = &mut self.nodes[at];
                (node.start, node.id) = (start, id);
                node.children[1] = right;
                self.balance(at)
            }
        }
    }
}
