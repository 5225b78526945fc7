//! The link goes down, and the device is unplugged, while connections are up.
//!
//! The kernel holds the removal of a device until every process that has it open has ended; librdmacm closes
//! none before. So each scene runs in a process of its own, and the test itself opens no device.
#![allow(clippy::print_stdout, reason = "visible with --nocapture only: how long it took")]

#[cfg(test)]
mod fabric;

#[cfg(test)]
mod scenes {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use nemesia_core::port::memory::{Event, ReceiveQueue};
    use nemesia_tests::memory_port::bench::Bench;

    use super::fabric::{Devices, addresses};

    const NAME: &str = "scenes::a_device_that_ends_ends_its_connections_and_may_come_back";
    /// Set in a process that plays a scene: the name of the scene.
    const SCENE: &str = "NEMESIA_TEST_VERBS_SCENE";
    /// The limit for noticing a failure on a busy machine. On an idle one it takes 3 s and less.
    const LIMIT: Duration = Duration::from_secs(30);

    /// Runs the virtual machine's `fabric`.
    fn fabric(arguments: &[&str]) {
        let status =
            Command::new("fabric").args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).status();
        assert!(status.is_ok_and(|status| status.success()), "fabric {arguments:?}");
    }

    /// Connects two ports, and changes the state of the device.
    fn play(happens: &[&str]) {
        let mut bench = Bench::new(Devices::new(&addresses().unwrap()));
        bench.open(2).unwrap();
        let (a, b) = bench.connect(0, 1).unwrap();
        bench.works((0, a), (1, b)).unwrap();
        if happens.is_empty() {
            return;
        }
        let id = bench.post_small(0, ReceiveQueue::Of(a)).unwrap();
        // It ends with this process.
        let mut fabric = Command::new("fabric");
        let mut running = fabric.args(happens).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let start = Instant::now();
        bench.lost(0, a).unwrap();
        bench.lost(1, b).unwrap();
        bench.fails(0, id).unwrap();
        println!("{happens:?}: found out after {:?}", start.elapsed());
        assert!(start.elapsed() < LIMIT, "{happens:?}: found out after {:?}", start.elapsed());
        bench.close(0, a).unwrap();
        bench.close(1, b).unwrap();
        bench
            .event(0, "the port has failed", |event| matches!(event, Event::PortFailed { .. }).then_some(()))
            .unwrap();
        let _ = running.try_wait();
    }

    /// Runs a scene in another process.
    fn scene(happens: &str) {
        let program = std::env::current_exe().unwrap();
        let status =
            Command::new(program).args(["--exact", NAME, "--nocapture"]).env(SCENE, happens).status();
        assert!(status.is_ok_and(|status| status.success()), "scene `{happens}`");
    }

    #[test]
    fn a_device_that_ends_ends_its_connections_and_may_come_back() {
        if let Ok(happens) = std::env::var(SCENE) {
            return play(&happens.split_whitespace().collect::<Vec<_>>());
        }
        if std::env::var_os("VM_KIND").is_none() {
            let reason = "this is not our virtual machine, whose devices can be pulled out";
            return nemesia_tests::skip("a_device_that_ends_ends_its_connections_and_may_come_back", reason);
        }
        let device = format!("/sys/class/infiniband/{}", std::env::var("VM_DEVICE").unwrap_or_default());
        scene("link 0 down");
        // A new device: after its link was down, rxe makes no connections to itself until then.
        for arguments in [["link", "0", "up"].as_slice(), &["unplug", "0"], &["plug", "0"]] {
            fabric(arguments);
        }
        scene("unplug 0");
        let start = Instant::now();
        while std::path::Path::new(&device).exists() {
            assert!(start.elapsed() < Duration::from_secs(30), "{device} stays");
            std::thread::sleep(Duration::from_millis(50));
        }
        fabric(&["plug", "0"]);
        scene("");
    }
}
