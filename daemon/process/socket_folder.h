/* Makes the folder of a user's sockets, and names the sockets of one run in it.
 *
 * A socket's path may have at most 107 bytes, so sockets have a short folder of their own:
 * $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR/coalesced or /tmp/coalesced-UID, mode 0700. A folder that was made
 * before with mode 0750 and the group coalesced is good, too: its members find the status socket, and reach
 * no other. Then the process's files are for its user alone (umask 077).
 *
 * A run's sockets are named by a hash of its identity. The identity is the device and inode of the run
 * directory: the directory keeps them when it is renamed, and no other directory has them while it is open.
 * On a host that follows, the identity is the host's key. So no two runs share a name, and the process that
 * holds the run's lock may remove the sockets that a killed run has left.
 *
 * Supervisor process, before it forks and after its workers have exited; its only thread; blocks on files. */
#ifndef DAEMON_PROCESS_SOCKET_FOLDER_H
#define DAEMON_PROCESS_SOCKET_FOLDER_H

#include "kernels/base/status.h"
#include "worker/control.h"

#include <glob.h>

/* Makes the folder, and removes the sockets that an earlier run of this identity has left. Writes `address`,
 * "ipc://…". The run's first `listeners` workers bind there: worker N at the address with ".N" behind it.
 * STATUS_PERMISSION: others may use the folder, or a file that is no socket has a
 * socket's name; STATUS_INVALID: a path is too long; STATUS_IO. After an error `address` is as before. */
enum status socket_folder_open(char address[CONTROL_ADDRESS_BYTES], const char *identity, unsigned listeners,
                               struct error *error);

/* The status sockets (daemon/watch/status_socket.h) of all runs on this host whose folders this user may
 * read: in the folders above, of every user and unit. Also those that killed runs have left. globfree(found)
 * follows.
 */
void socket_folder_find_runs(glob_t *found);

/* Removes the sockets of the run with this address that are still there. */
void socket_folder_clear(const char *address);

#endif
