/* Outcrop keeps the states that a simulation passes through.
 *
 * Made from the library's source by cbindgen; do not edit it.
 *
 * Every call returns a status: OUTCROP_OK, which is 0, or what went wrong; outcrop_error() has the sentence to it. All calls may be
 * made from several threads at once. Handles are numbers and not addresses: one that is NULL, was closed, belongs to the process that
 * this one was forked from or is of another kind is refused with OUTCROP_USAGE. Pointers to the program's own memory cannot be
 * checked: there must be as many bytes as is said, and nobody may write to them during a call that reads them, or use them during
 * one that writes them. Texts end with a zero byte and are UTF-8.
 *
 * Configurations are TOML texts; `host = "2 GiB"` and `dir = "scratch"` on two lines make a tape. The keys are those of docs/c.md, and
 * variables such as OUTCROP_HOST override them. With OUTCROP_LOG=warn in the environment the library reports to standard error.
 */

#ifndef OUTCROP_H
#define OUTCROP_H

#include <stddef.h>
#include <stdint.h>

/* The version of this header as one number. */
#define OUTCROP_HEADER_VERSION \
  ((uint32_t)((OUTCROP_VERSION_MAJOR << 16) | (OUTCROP_VERSION_MINOR << 8) | OUTCROP_VERSION_PATCH))

// The version of this header. That of the library is what outcrop_version() says.
#define OUTCROP_VERSION_MAJOR 0

// See OUTCROP_VERSION_MAJOR.
#define OUTCROP_VERSION_MINOR 1

// See OUTCROP_VERSION_MAJOR.
#define OUTCROP_VERSION_PATCH 0

// Where a version may have come to, for outcrop_session_wait: all directories.
#define OUTCROP_ALL 0

// Where a version may have come to, for outcrop_session_wait: host memory, from where this process
// can restore it.
#define OUTCROP_HOST -1

// The last index runs fastest in memory, as in C.
#define OUTCROP_ROW_MAJOR 0

// The first index runs fastest in memory, as in Fortran.
#define OUTCROP_COLUMN_MAJOR 1

// The length of a list in the box of a part of it, in its slowest dimension: the list has the
// parts of all ranks, in the order of the ranks.
#define OUTCROP_LIST 281474976710655

// What a call returns: 0 is success, and outcrop_error() says what any other one means.
typedef enum {
  // All is well.
  OUTCROP_OK = 0,
  // The call makes no sense: a wrong handle, length, name, size or configuration.
  OUTCROP_USAGE = 10,
  // The key or version is in use.
  OUTCROP_EXISTS = 11,
  // There is no such snapshot, version or region.
  OUTCROP_MISSING = 12,
  // It is larger than the memory that it has to pass through.
  OUTCROP_TOO_LARGE = 13,
  // There is no room, and none can be made.
  OUTCROP_FULL = 14,
  // There is no room because of what the program holds.
  OUTCROP_HELD = 15,
  // Bytes came back changed.
  OUTCROP_DAMAGED = 16,
  // A layer or a file failed.
  OUTCROP_STORAGE = 17,
  // Another process is in the way, or one is missing.
  OUTCROP_BUSY = 18,
  // A mistake in the library, which has caught itself. What the call was about cannot be used
  // any more.
  OUTCROP_PANIC = 20,
  // The program was compiled with the header of another version.
  OUTCROP_VERSION = 21,
} outcrop_status;

// What a region is made of.
typedef enum {
  // Bytes without a meaning, or unsigned numbers of 8 bits.
  OUTCROP_U8 = 0,
  // int8_t
  OUTCROP_I8 = 1,
  // uint16_t
  OUTCROP_U16 = 2,
  // int16_t
  OUTCROP_I16 = 3,
  // uint32_t
  OUTCROP_U32 = 4,
  // int32_t
  OUTCROP_I32 = 5,
  // uint64_t
  OUTCROP_U64 = 6,
  // int64_t
  OUTCROP_I64 = 7,
  // Floating point numbers of 16 bits.
  OUTCROP_F16 = 8,
  // float
  OUTCROP_F32 = 9,
  // double
  OUTCROP_F64 = 10,
  // Two floats.
  OUTCROP_C64 = 11,
  // Two doubles.
  OUTCROP_C128 = 12,
  // bool
  OUTCROP_BOOL = 13,
  // Text in UTF-8; its elements are its bytes.
  OUTCROP_TEXT = 14,
} outcrop_element;

// What a member of a struct is, for outcrop_field.
typedef enum {
  // Numbers.
  OUTCROP_NUMBERS = 0,
  // Structs, inside this one.
  OUTCROP_STRUCTS = 1,
  // Addresses of memory from malloc, which belongs to the structure, or NULL.
  OUTCROP_POINTERS = 2,
  // Addresses of structs that other members lead to, or NULL.
  OUTCROP_LINKS = 3,
  // Addresses of texts from malloc that end with a zero byte, or NULL.
  OUTCROP_TEXTS = 4,
} outcrop_member;

// Arrays and linked structures of the program, of which versions are durable in a pool.
typedef struct outcrop_head outcrop_head;

// A slot in the program's hands, to compute into.
typedef struct outcrop_lent outcrop_lent;

// A connection to the node daemon of this user.
typedef struct outcrop_node outcrop_node;

// A file of which the newest bytes may be in memory of the node.
typedef struct outcrop_node_file outcrop_node_file;

// A snapshot in the program's hands, to be read in place.
typedef struct outcrop_past outcrop_past;

// A write that was begun.
typedef struct outcrop_pending outcrop_pending;

// A file with arrays of which versions are durable.
typedef struct outcrop_pool outcrop_pool;

// One series of versions. Calls on one session are made one after the other.
typedef struct outcrop_session outcrop_session;

// A place for checkpoints.
typedef struct outcrop_store outcrop_store;

// A tape: snapshots written in one order and read back in a known other one. Calls on one handle
// are made one after the other.
typedef struct outcrop_tape outcrop_tape;

// What a tape has done until now. May become longer in later versions.
typedef struct {
  // Snapshots saved, by copy or by lending.
  uint64_t saves;
  // The program's bytes in them.
  uint64_t saved_bytes;
  // Snapshots taken or got.
  uint64_t reads;
  // Reads that found their snapshot in memory.
  uint64_t hits;
  // Reads that found it on its way.
  uint64_t late;
  // Reads that found it elsewhere, or broke the announced order.
  uint64_t misses;
  // Seconds that the program spent inside saves: copies, waits and all.
  double save_seconds;
  // Seconds of these that it waited for room.
  double wait_seconds;
  // Seconds that it spent inside takes and gets.
  double read_seconds;
  // Seconds in which bytes were moved between layers.
  double move_seconds;
  // Seconds of processor time that the helper threads have taken.
  double helper_seconds;
} outcrop_tape_stats_t;

// A member of a struct. All numbers are what the compiler says: offsetof and sizeof.
typedef struct {
  // Its name, for messages.
  const char *name;
  // What it is: an outcrop_member.
  int member;
  // Where it begins.
  size_t offset;
  // How many there are one after the other: 1 unless it is an array.
  size_t count;
  // The bytes of one number, or of one number that a pointer leads to.
  size_t bytes;
  // The index of the type of a struct, or of what a pointer leads to; -1 for numbers.
  ptrdiff_t type_index;
  // How many elements a pointer leads to, if length_bytes is 0; otherwise the offset of the
  // integer that says it.
  size_t length;
  // The bytes of that integer: 1, 2, 4 or 8. Negative ones are refused.
  size_t length_bytes;
  // Of a member of a union: the offset of the integer that says whether it is the valid one.
  size_t tag;
  // The bytes of that integer: 1, 2, 4 or 8. 0 if the field is always valid.
  size_t tag_bytes;
  // What the integer is if the field is valid. A field that is valid for several is there
  // several times.
  uint64_t tag_value;
} outcrop_field;

// A struct of the program. Bytes that belong to no field are not kept.
typedef struct {
  // Its name.
  const char *name;
  // Its length.
  size_t bytes;
  // Its fields.
  const outcrop_field *fields;
  // How many there are.
  size_t field_count;
} outcrop_type;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Why the last call of this thread that failed has failed, and what can be done. Valid until the
// next one fails; never NULL.
const char *outcrop_error(void);

// The version of the library, as a text such as "0.1.0".
const char *outcrop_version(void);

// What outcrop_tape_open calls, with the version of the header.
outcrop_status outcrop_tape_open_as(uint32_t header_version, const char *config, outcrop_tape **tape);

// Another handle to the same tape, for another thread. A call that finds no room waits for what
// the owners of other handles may take; if all handles wait, it fails. The tape ends with its last
// handle.
outcrop_status outcrop_tape_clone(outcrop_tape *tape, outcrop_tape **clone);

// Ends a handle. With the last one, all layers give back what they hold, and no file stays behind.
outcrop_status outcrop_tape_close(outcrop_tape *tape);

// Saves bytes under a key by copying them. Returns when the program may change them again.
outcrop_status outcrop_tape_save(outcrop_tape *tape, uint64_t key, const void *data, size_t bytes);

// Lends the slot of a new snapshot, to compute straight into. It holds at first whatever was there
// before, begins with a page, and must be sealed or abandoned.
outcrop_status outcrop_tape_lend(outcrop_tape *tape, uint64_t key, size_t bytes, void **data, outcrop_lent **lent);

// Makes a lent slot a snapshot. Neither the handle nor the slot is the program's any more.
outcrop_status outcrop_lent_seal(outcrop_lent *lent);

// Makes a lent slot a snapshot that the program goes on reading, so that the next state can be
// computed from it into the next slot. The address stays the same.
outcrop_status outcrop_lent_seal_and_keep(outcrop_lent *lent, outcrop_past **past);

// Gives a lent slot back; it becomes no snapshot.
outcrop_status outcrop_lent_abandon(outcrop_lent *lent);

// Hands over a snapshot for the last time, in place: its key is free again, and the slot when it
// is released.
outcrop_status outcrop_tape_take(outcrop_tape *tape,
                                 uint64_t key,
                                 const void **data,
                                 size_t *bytes,
                                 outcrop_past **past);

// Hands over a snapshot, in place, and keeps it.
outcrop_status outcrop_tape_get(outcrop_tape *tape,
                                uint64_t key,
                                const void **data,
                                size_t *bytes,
                                outcrop_past **past);

// Ends the reading of a snapshot: its slot is not the program's any more.
outcrop_status outcrop_past_release(outcrop_past *past);

// Copies a snapshot out and drops it. With another number of bytes than it has, nothing happens.
outcrop_status outcrop_tape_take_into(outcrop_tape *tape, uint64_t key, void *data, size_t bytes);

// How many bytes a snapshot has. It stays where it is.
outcrop_status outcrop_tape_size(outcrop_tape *tape, uint64_t key, size_t *bytes);

// Forgets a snapshot without reading it.
outcrop_status outcrop_tape_discard(outcrop_tape *tape, uint64_t key);

// What the tape has done until now. `bytes` is sizeof(outcrop_tape_stats_t).
outcrop_status outcrop_tape_stats(outcrop_tape *tape, outcrop_tape_stats_t *stats, size_t bytes);

// All that is known of what the tape has done, layer by layer, as a JSON text with a zero byte at
// its end. If `bytes` are not enough for it, nothing is written, and `needed` says how many are;
// with 0 of them `text` may be NULL. That is no failure.
outcrop_status outcrop_tape_stats_json(outcrop_tape *tape, char *text, size_t bytes, size_t *needed);

// Writes the timeline of a tape that was opened with `trace = true` to a file that
// chrome://tracing and Perfetto open.
outcrop_status outcrop_tape_write_trace(outcrop_tape *tape, const char *path);

// What outcrop_store_open calls, with the version of the header.
outcrop_status outcrop_store_open_as(uint32_t header_version, const char *config, outcrop_store **store);

// Opens the series of versions called `name`. With several ranks, all of them call it, in the same
// order.
outcrop_status outcrop_store_session(outcrop_store *store, const char *name, outcrop_session **session);

// Whether it is time to save, by the configured interval and what saving has cost until now: 1 or
// 0. Without an interval it never is. With several ranks, all of them call it, and all get the
// answer of rank 0.
outcrop_status outcrop_store_due(outcrop_store *store, int *due);

// Ends a handle. Its sessions go on; the store ends with the last of them.
outcrop_status outcrop_store_close(outcrop_store *store);

// Protects `count` elements at `data` under a name: every save has them, and every restore writes
// to them. They must stay where they are until the session is closed, or the name is protected
// anew or unprotected. A region may be protected before its bytes mean anything.
outcrop_status outcrop_session_protect(outcrop_session *session,
                                       const char *name,
                                       void *data,
                                       size_t count,
                                       int element);

// Says how the elements of a protected region form an array: `dimensions` numbers at `shape`, in
// the order of the indices, and OUTCROP_ROW_MAJOR or OUTCROP_COLUMN_MAJOR. If it is a part of a
// global array, `global` has as many numbers, the dimensions of that one, and `offset` the index
// of the part's first element; otherwise both are NULL. A region of which nothing is said has one
// dimension, and so has one that is protected again.
outcrop_status outcrop_session_shape(outcrop_session *session,
                                     const char *name,
                                     int order,
                                     size_t dimensions,
                                     const size_t *shape,
                                     const size_t *global,
                                     const size_t *offset);

// How many dimensions a region has in a version, and the first `room` of them. The order is
// OUTCROP_ROW_MAJOR or OUTCROP_COLUMN_MAJOR.
outcrop_status outcrop_session_region_shape(outcrop_session *session,
                                            uint64_t version,
                                            const char *name,
                                            int *order,
                                            size_t *dimensions,
                                            size_t *shape,
                                            size_t room);

// Which part of a global array a region is in a version: the first `room` dimensions of that array
// at `global`, and as many numbers of the index of its first element there at `offset`. `found` is
// 0 if it was not said to be a part, and then nothing else is written; otherwise it is 1.
outcrop_status outcrop_session_region_box(outcrop_session *session,
                                          uint64_t version,
                                          const char *name,
                                          int *found,
                                          size_t *global,
                                          size_t *offset,
                                          size_t room);

// Leaves a region out from here on. Its memory may be freed: with `live`, this waits until it has
// been read.
outcrop_status outcrop_session_unprotect(outcrop_session *session, const char *name);

// Saves all protected regions as a version, which must be higher than all before. Returns when the
// program may change them again. If an earlier version has failed to become durable and the
// program does not know yet, that is the error, once, and nothing is saved. A version that is on
// no directory may be saved again then; with several ranks, after a rewind.
outcrop_status outcrop_session_save(outcrop_session *session, uint64_t version);

// Waits until a version is durable: on the directory `layer`, 1 being the first, on all ranks; or
// OUTCROP_ALL, or OUTCROP_HOST. An error if it never will be.
outcrop_status outcrop_session_wait(outcrop_session *session, uint64_t version, int layer);

// Whether a version is durable there by now, with layers as for outcrop_session_wait: 1 or 0. An
// error if it never will be.
outcrop_status outcrop_session_has_reached(outcrop_session *session, uint64_t version, int layer, int *is_there);

// Sets the options of a region from the next save on, as TOML: `compression = 'lz4'`, `block = '64
// KiB'`, `excluded = [[0, 4096]]`; docs/settings.md has all of them. What is not mentioned is as
// for the store. The region need not be protected yet.
outcrop_status outcrop_session_region_options(outcrop_session *session, const char *name, const char *options);

// Restores a version into all protected regions, or fails and changes none of them: if the version
// is damaged anywhere, or a region has another size or type there. With several ranks, all of them
// call it.
outcrop_status outcrop_session_restore(outcrop_session *session, uint64_t version);

// Restores the newest version that is undamaged on all ranks. `found` is 0 if there is no version
// at all, which is no error; else it is 1, and `version` says which one it was, and
// outcrop_session_skipped what was passed over for it. If it fails, no region is changed. With
// several ranks, all of them call it.
outcrop_status outcrop_session_restore_latest(outcrop_session *session, uint64_t *version, int *found);

// The newest version that all ranks have. `found` is 0 if there is none. With several ranks, all
// of them call it.
outcrop_status outcrop_session_latest(outcrop_session *session, uint64_t *version, int *found);

// How many bytes a region has in a version, so that room can be made for it.
outcrop_status outcrop_session_region_size(outcrop_session *session, uint64_t version, const char *name, size_t *bytes);

// Says that bytes of a protected region have changed although this program has not written them: a
// device or a network card did.
outcrop_status outcrop_session_mark_dirty(outcrop_session *session, const char *name, size_t offset, size_t bytes);

// Forgets all versions above this one, for good, so that the series can go on from there in
// another way. With several ranks, all of them call it.
outcrop_status outcrop_session_rewind(outcrop_session *session, uint64_t version);

// Forgets all versions, for good. With several ranks, all of them call it.
outcrop_status outcrop_session_rewind_all(outcrop_session *session);

// Forgets versions that were found when the session was opened and that not all ranks have, for
// good: also those that would be whole again if a directory of some rank came back. All ranks call
// it.
outcrop_status outcrop_session_forget_incomplete(outcrop_session *session);

// Waits until everything under way is done. An error if some version has not become
// durable on some directory.
outcrop_status outcrop_session_flush(outcrop_session *session);

// As outcrop_session_flush, and ends the session, whatever the status is.
outcrop_status outcrop_session_close(outcrop_session *session);

// The versions that can be restored or are under way, in ascending order: the first `room` of them
// at `versions`, which may be NULL if that is 0. `count` says how many there are.
outcrop_status outcrop_session_versions(outcrop_session *session, uint64_t *versions, size_t room, size_t *count);

// The names of all regions of a version, each with a zero byte at its end. If `bytes` are not
// enough for all of them, nothing is written, and `needed` says how many are; with 0 of them
// `names` may be NULL. That is no failure.
outcrop_status outcrop_session_region_names(outcrop_session *session,
                                            uint64_t version,
                                            char *names,
                                            size_t bytes,
                                            size_t *needed);

// What a region is made of in a version: an outcrop_element, or -1 if it is of another kind, which
// some other language has.
outcrop_status outcrop_session_region_element(outcrop_session *session,
                                              uint64_t version,
                                              const char *name,
                                              int *element);

// Copies one region of a version to `data`, of which there are as many bytes as
// outcrop_session_region_size says. It need not be protected, and the session goes on as if
// nothing had been read. Concerns this rank alone. If the status is not 0, `data` may hold
// anything.
outcrop_status outcrop_session_read(outcrop_session *session,
                                    uint64_t version,
                                    const char *name,
                                    void *data,
                                    size_t bytes);

// What the last restore has passed over: newer versions that could not be used, and damaged
// copies, one on each line, with a zero byte at the end. If `bytes` are not enough, nothing is
// written, and `needed` says how many are: 1 if nothing was passed over. That is no failure.
outcrop_status outcrop_session_skipped(outcrop_session *session, char *lines, size_t bytes, size_t *needed);

// What outcrop_pool_open calls, with the version of the header.
outcrop_status outcrop_pool_open_as(uint32_t header_version, const char *path, uint64_t versions, outcrop_pool **pool);

// Closes a pool. What was not persisted is lost, and its arrays must not be used any more.
outcrop_status outcrop_pool_close(outcrop_pool *pool);

// Opens an array: `data` is where it is, until the pool is closed. It is as in the newest version,
// or in the one that was restored; one that is not there is made of zeros. `element` is an
// outcrop_element, of numbers; `shape` has as many numbers as `dimensions` says, up to three, in
// row-major order. The program reads and writes it as its own memory, but not during a call with
// this pool.
outcrop_status outcrop_pool_array(outcrop_pool *pool,
                                  const char *name,
                                  int element,
                                  size_t dimensions,
                                  const size_t *shape,
                                  void **data);

// Makes a version of all arrays durable, and says its number at `version`, which may be NULL. What
// has not changed is not written. If it fails, the newest version is the one that was.
outcrop_status outcrop_pool_persist(outcrop_pool *pool, uint64_t *version);

// Has all arrays be as in a version, where they are. What was not persisted is lost.
outcrop_status outcrop_pool_restore(outcrop_pool *pool, uint64_t version);

// The versions that there are, in ascending order: the first `room` of them at `versions`, which
// may be NULL if that is 0. `count` says how many there are.
outcrop_status outcrop_pool_versions(outcrop_pool *pool, uint64_t *versions, size_t room, size_t *count);

// Copies an array as it is in a version to `data`, which has as many bytes as it. Damage is found
// before anything is copied.
outcrop_status outcrop_pool_read(outcrop_pool *pool, uint64_t version, const char *name, void *data, size_t bytes);

// What outcrop_head_open calls, with the version of the header.
outcrop_status outcrop_head_open_as(uint32_t header_version,
                                    const char *path,
                                    uint64_t versions,
                                    size_t block_bytes,
                                    double mtbf_s,
                                    outcrop_head **head);

// Closes a head. The program's memory stays as it is; what was not persisted is not durable.
outcrop_status outcrop_head_close(outcrop_head *head);

// Keeps an array of numbers that lies in the program's memory: `element` is an outcrop_element,
// of numbers. It stays valid until the head is closed, or until this is called again with the same
// name and another address. The pool has it under its name.
outcrop_status outcrop_head_array(outcrop_head *head, const char *name, int element, void *data, size_t count);

// Keeps structs that lie in the program's memory, `count` of them from `data` on, with all that
// their members lead to. `types` describes all of them, and `type_index` says which these are.
// When a version is restored, what members lead to is new memory from malloc. Otherwise as
// outcrop_head_array.
outcrop_status outcrop_head_linked(outcrop_head *head,
                                   const char *name,
                                   const outcrop_type *types,
                                   size_t type_count,
                                   size_t type_index,
                                   void *data,
                                   size_t count);

// Makes a version of everything that was added durable, and says its number at `version`, which
// may be NULL. What has not changed is not written. If it fails, the newest version is the one
// that was.
outcrop_status outcrop_head_persist(outcrop_head *head, uint64_t *version);

// As outcrop_head_persist, if it is worth it by now: if a failure would cost more than this does.
// Otherwise the version is 0. Call it at the end of each iteration; a call that does nothing takes
// about a microsecond.
outcrop_status outcrop_head_persist_if_worth_it(outcrop_head *head, uint64_t *version);

// Has everything that was added be as in the newest version that is whole, and says its number at
// `version`, which may be NULL. It is 0 if there is none; then nothing has changed. Memory that
// pointers led to before is not freed.
outcrop_status outcrop_head_restore(outcrop_head *head, uint64_t *version);

// As outcrop_head_restore for one version.
outcrop_status outcrop_head_restore_version(outcrop_head *head, uint64_t version);

// Whether outcrop_head_persist_if_worth_it would persist now: 1 at `is_worth_it` if so, and
// otherwise 0. For programs of several processes, of which one decides for all.
outcrop_status outcrop_head_is_worth_it(outcrop_head *head, uint64_t *is_worth_it);

// The versions that there are, as outcrop_pool_versions gives them.
outcrop_status outcrop_head_versions(outcrop_head *head, uint64_t *versions, size_t room, size_t *count);

// Copies an array of a version, all of which is compared with its checksums first, to `data`,
// which has as many bytes as the array.
outcrop_status outcrop_head_read(outcrop_head *head, uint64_t version, const char *name, void *data, size_t bytes);

// Says that these elements of an array, or of an array of structs, are about to change: `count` of
// them from `first` on. From the next version on, DRAM keeps copies of them, and of what other
// hints name before that; what else changes of the array is read from the medium. Without hints,
// DRAM keeps what has changed.
outcrop_status outcrop_head_hint_elements(outcrop_head *head, const char *name, size_t first, size_t count);

// As outcrop_head_hint_elements for those elements of an array that belong to nodes of a graph
// with at least `degree` edges. `offsets` names an array of integers in which the edges of each
// node begin, with one more at the end (CSR). The array has the same number of elements for each
// node.
outcrop_status outcrop_head_hint_degree(outcrop_head *head, const char *name, const char *offsets, uint64_t degree);

// Says by a function which structs of linked structures are about to change: it is called with
// each struct of this type when the next version is made, says so by a number other than 0, and
// must not call this library. DRAM keeps copies of these, and of what other hints name; what else
// changes is read from the medium.
outcrop_status outcrop_head_hint_structs(outcrop_head *head,
                                         const outcrop_type *types,
                                         size_t type_count,
                                         size_t type_index,
                                         int (*changes)(void *it));

// How many bytes of copies DRAM has since the last version, at `dram_bytes`, and how many were
// written while the medium alone had them since the head was opened, at `copied_bytes`. Hints
// change these. Either may be NULL.
outcrop_status outcrop_head_usage(outcrop_head *head, uint64_t *dram_bytes, uint64_t *copied_bytes);

// What outcrop_node_connect calls, with the version of the header.
outcrop_status outcrop_node_connect_as(uint32_t header_version, const char *config, outcrop_node **node);

// Ends a connection. Files that were opened with it stay open. The daemon goes on draining.
outcrop_status outcrop_node_disconnect(outcrop_node *node);

// Opens a file to be read and written; it is created if it is missing, and keeps what it has.
outcrop_status outcrop_node_open(outcrop_node *node, const char *path, outcrop_node_file **file);

// Closes a file, when its pending writes are done, and reports a failure to drain it that was not
// reported before. What was written is drained after it.
outcrop_status outcrop_node_close(outcrop_node_file *file);

// Writes bytes at an offset of a file. Returns when they are in memory of the node, which is when
// `data` may change again; waits if there is no memory left. If an earlier write could not be
// drained, the error says so, once. Several threads may write to one file at once.
outcrop_status outcrop_node_write(outcrop_node_file *file, uint64_t offset, const void *data, size_t bytes);

// Begins to write bytes at an offset of a file, and returns at once. Another thread copies them to
// memory of the node meanwhile. `data` must stay as it is until `pending` is done. Every pending
// write has to be waited for, once. Up to 64 may be pending; one more waits for one of them.
outcrop_status outcrop_node_write_async(outcrop_node_file *file,
                                        uint64_t offset,
                                        const void *data,
                                        size_t bytes,
                                        outcrop_pending **pending);

// Whether a pending write is done, well or not: then `data` may change again. It does not end the
// handle.
outcrop_status outcrop_pending_test(outcrop_pending *pending, int *is_done);

// Waits until a pending write is done, and returns what outcrop_node_write would have returned.
// The handle ends.
outcrop_status outcrop_pending_wait(outcrop_pending *pending);

// Reads up to so many bytes from an offset of a file, the newest, wherever they are. `count` says
// how many: fewer at the end of the file.
outcrop_status outcrop_node_read(outcrop_node_file *file, uint64_t offset, void *data, size_t bytes, size_t *count);

// How many bytes a file has.
outcrop_status outcrop_node_size(outcrop_node_file *file, uint64_t *bytes);

// Cuts a file off, or extends it with zeros.
outcrop_status outcrop_node_resize(outcrop_node_file *file, uint64_t bytes);

// Waits until everything that was written to a file is in it, pending writes included.
outcrop_status outcrop_node_drain(outcrop_node_file *file);

// Drains a file, and makes it durable.
outcrop_status outcrop_node_sync(outcrop_node_file *file);

// Drains all files of all programs of this user on this machine. Those that could not be drained
// are tried again.
outcrop_status outcrop_node_drain_all(outcrop_node *node);

// What the daemon holds, for whom, and what it could not drain, as a JSON text with a zero byte at
// its end. If `bytes` are not enough for it, nothing is written, and `needed` says how many are;
// with 0 of them `text` may be NULL. That is no failure.
outcrop_status outcrop_node_status_json(outcrop_node *node, char *text, size_t bytes, size_t *needed);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#ifdef __cplusplus
extern "C" {
#endif

// Opens a tape as a TOML text describes it.
static inline outcrop_status outcrop_tape_open(const char *config, outcrop_tape **tape) {
  return outcrop_tape_open_as(OUTCROP_HEADER_VERSION, config, tape);
}

// Opens a store as a TOML text describes it. Sessions are opened one by one afterwards.
static inline outcrop_status outcrop_store_open(const char *config, outcrop_store **store) {
  return outcrop_store_open_as(OUTCROP_HEADER_VERSION, config, store);
}

// Opens a pool, or creates it if there is no such file. It keeps so many versions, 1 to 31. Another process gets an error.
static inline outcrop_status outcrop_pool_open(const char *path, uint64_t versions, outcrop_pool **pool) {
  return outcrop_pool_open_as(OUTCROP_HEADER_VERSION, path, versions, pool);
}

// Connects to the node daemon of this user as a TOML text describes it: `memory = "4 GiB"`, or an empty text. If there is no daemon, it
// is started.
static inline outcrop_status outcrop_node_connect(const char *config, outcrop_node **node) {
  return outcrop_node_connect_as(OUTCROP_HEADER_VERSION, config, node);
}

// Opens a pool for what lies in the program's own memory, or creates it if there is no such file. It keeps so many versions, 1 to
// 31. What has changed is written in blocks of so many bytes; 0 is the default. So many seconds pass between failures on average; 0
// is a day. Another process gets an error.
static inline outcrop_status outcrop_head_open(const char *path, uint64_t versions, size_t block_bytes, double mtbf_s,
                                               outcrop_head **head) {
  return outcrop_head_open_as(OUTCROP_HEADER_VERSION, path, versions, block_bytes, mtbf_s, head);
}

#ifdef __cplusplus
}
#endif

#endif /* OUTCROP_H */
