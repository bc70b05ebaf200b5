//! Mechanisms that the negative controls of the safety tests switch off, to
//! show that the tests notice. Only in builds with the feature
//! `unsafe-no-grace`, which no release has: elsewhere each of them is always
//! on, at no cost.

use std::sync::OnceLock;

/// A mechanism that a negative control can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Waiting for grace. Off in such a build, unless
    /// `GPUPOOL_TEST_KEEP_GRACE` is set.
    Grace,
    /// The gate that keeps fences out of captures: `GPUPOOL_TEST_NO_GATE`.
    Gate,
    /// That no context ends while a fence is recorded or asked for:
    /// `GPUPOOL_TEST_NO_HOLD`.
    Hold,
    /// That an exported block's segment takes no new blocks:
    /// `GPUPOOL_TEST_NO_RETIRE`.
    Retire,
    /// That who has access to a context's memory has it to mapped segments:
    /// `GPUPOOL_TEST_NO_PEERS`.
    Peers,
    /// The limit of an allocation's wait: `GPUPOOL_TEST_NO_WAIT_LIMIT`.
    WaitLimit,
    /// That a forked child sees the library as off: `GPUPOOL_TEST_NO_FORK`.
    Fork,
    /// That the library makes no call after `exit`: `GPUPOOL_TEST_NO_EXIT`.
    Exit,
    /// That idle memory goes back before the process checkpoints itself:
    /// `GPUPOOL_TEST_NO_CHECKPOINT`.
    Checkpoint,
    /// That a traced call's stack is followed on the thread's own stack only:
    /// `GPUPOOL_TEST_NO_STACK_CHECK`.
    StackCheck,
}

impl Control {
    const ALL: [(Self, &'static str); 10] = [
        (Self::Grace, "GPUPOOL_TEST_KEEP_GRACE"),
        (Self::Gate, "GPUPOOL_TEST_NO_GATE"),
        (Self::Hold, "GPUPOOL_TEST_NO_HOLD"),
        (Self::Retire, "GPUPOOL_TEST_NO_RETIRE"),
        (Self::Peers, "GPUPOOL_TEST_NO_PEERS"),
        (Self::WaitLimit, "GPUPOOL_TEST_NO_WAIT_LIMIT"),
        (Self::Fork, "GPUPOOL_TEST_NO_FORK"),
        (Self::Exit, "GPUPOOL_TEST_NO_EXIT"),
        (Self::Checkpoint, "GPUPOOL_TEST_NO_CHECKPOINT"),
        (Self::StackCheck, "GPUPOOL_TEST_NO_STACK_CHECK"),
    ];

    /// Whether the mechanism is switched off. The environment is read once, by
    /// the first call.
    #[inline]
    #[must_use]
    pub fn is_off(self) -> bool {
        cfg!(feature = "unsafe-no-grace") && self.is_switched_off()
    }

    #[cold]
    fn is_switched_off(self) -> bool {
        static OFF: OnceLock<Vec<Control>> = OnceLock::new();
        let off = OFF.get_or_init(|| {
            let is_set = |name: &str| std::env::var_os(name).is_some();
            Self::ALL
                .into_iter()
                .filter(|(control, name)| is_set(name) != (*control == Self::Grace))
                .map(|(control, _)| control)
                .collect()
        });
        off.contains(&self)
    }
}
