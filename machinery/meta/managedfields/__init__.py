"""Who wrote which field: Kubernetes' field ownership and server-side apply, as pure functions over documents.

The rules are those of sigs.k8s.io/structured-merge-diff and of apimachinery's managedfields. Nothing here knows HTTP, a kind or
a clock; the API server and the hub's own services both use it.

    structure     how a schema divides a document into fields
    fieldset      a set of fields, and its notation FieldsV1
    comparing     which fields two documents differ in
    merging       an applied configuration laid over a live document
    selecting     the fields that a document has, and a document without some of them
    holdings      `metadata.managedFields` as values
    updating      what a write does to everybody's holdings
    applying      server-side apply: merge, remove what is no longer applied, conflicts
    entries       the same as `updating`, cheaply, for writers that never apply
    notation      FieldsV1 as a set by itself, for `entries`
    lastapplied   the way from client-side apply to server-side apply
"""
