//! Opens pseudo-terminals of a sandbox.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{
    LocalModes, OptionalActions, OutputModes, Winsize, tcgetattr, tcsetattr, tcsetwinsize,
};

use super::spec::Terminal;

/// A new pseudo-terminal.
pub struct PseudoTerminal {
    pub controlling: OwnedFd,
    pub terminal: OwnedFd,
}

impl PseudoTerminal {
    /// Opens a pseudo-terminal at a multiplexer, the file `ptmx` of a devpts.
    pub fn open(multiplexer: &Path, wanted: Terminal) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let controlling = openat(CWD, multiplexer, flags, Mode::empty())?;
        unlockpt(&controlling)?;
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let terminal = ioctl_tiocgptpeer(&controlling, flags)?;
        if !wanted.interactive {
            // The terminal outside keeps its normal mode: it echoes, turns keys into signals and
            // translates output already.
            let mut modes = tcgetattr(&terminal)?;
            modes.local_modes -= LocalModes::ECHO | LocalModes::ISIG;
            modes.output_modes -= OutputModes::OPOST;
            tcsetattr(&terminal, OptionalActions::Now, &modes)?;
        }
        let size = Winsize {
            ws_row: wanted.rows,
            ws_col: wanted.columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&terminal, size)?;
        Ok(Self {
            controlling,
            terminal,
        })
    }

    /// Replaces the wanted streams by the terminal.
    pub fn replace(&self, wanted: Terminal, streams: &mut [OwnedFd; 3]) -> io::Result<()> {
        for (stream, stands_for) in streams.iter_mut().zip(wanted.streams) {
            if stands_for {
                *stream = self.terminal.try_clone()?;
            }
        }
        Ok(())
    }
}
