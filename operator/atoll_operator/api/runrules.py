"""Rules of a TrainingRun that concern several of its sections."""

from atoll_operator.api.learnerunit import NAMED, QUEUE_OF_PRIORITY
from atoll_runtime.contract.rules import immutable_field, rule

NEW_RUN = "make a new TrainingRun"
CUT = ("outer.fragments", "syncer.shards")
"""Fields that say into how many parts a model is cut."""
RUN_RULES = (
    rule(
        "self.quorum.min <= self.pools.map(p, p.units).sum()",
        "must be at most the units of all pools together; to release every chip set spec.units to 0 or suspend the run",
        "quorum.min",
    ),
    rule(
        "!has(self.units) || self.units <= self.pools.size() * 256",
        "must be at most 256 for each pool",
        "units",
    ),
    QUEUE_OF_PRIORITY,
    rule(
        "!self.data.uri.startsWith('file:') || self.podTemplate.volumeMounts.exists(mount, "
        "(self.data.uri + '/').startsWith('file://' + mount.mountPath + '/'))",
        "must be in a bucket (gs://), or below a mountPath of podTemplate.volumeMounts, because every pod reads it",
        "data.uri",
        says="self.data.uri + ' must lie below a mountPath of podTemplate.volumeMounts, because every pod reads it'",
    ),
    rule(
        "!has(self.communication.codec) || CODECS[self.outer.codec] <= CODECS[self.communication.codec]",
        "must not be wider than outer.codec, which every shard decodes; from wide to narrow: float32, bf16, int8, int4",
        "communication.codec",
    ),
    # How the model is split over the chips of a unit, and cut into pieces.
    rule(
        "self.inner.mesh.tensor * self.inner.mesh.expert == 1 || self.pools.all(p, "
        "[(p.topology + 'x1').split('x').map(side, int(side))].all(t, "
        "[t[0] * t[1] * t[2] * (p.accelerator in TWO_DEVICES_PER_CHIP ? 2 : 1)].all(devices, "
        "devices % self.inner.mesh.tensor == 0 && devices * (has(p.slicesPerUnit) ? p.slicesPerUnit : 1) % "
        "(self.inner.mesh.tensor * self.inner.mesh.expert) == 0)))",
        "must fit the units of every pool: tensor must divide the devices of one slice, and tensor x expert those of a "
        "unit (a device is a chip, and half a chip of TWO_DEVICES_PER_CHIP)",
        "inner.mesh",
    ),
    rule(
        "!has(self.model.preset) || PRESET_HEADS[self.model.preset] % self.inner.mesh.tensor == 0",
        "must divide heads, kvHeads and hidden of the preset: PRESET_HEADS",
        "inner.mesh.tensor",
    ),
    rule(
        "!has(self.model.preset) || PRESET_EXPERTS[self.model.preset] % self.inner.mesh.expert == 0",
        "must divide the experts of the preset: PRESET_EXPERTS",
        "inner.mesh.expert",
    ),
    *(
        rule(
            "!has(self.model.preset) || self.FIELD <= PRESET_PIECES[self.model.preset]",
            "must be at most the pieces of the preset: PRESET_PIECES",
            field,
        )
        for field in CUT
    ),
    rule(
        "!has(self.model.dimensions) || [self.model.dimensions].all(d, "
        "[d.heads, d.kvHeads, d.hidden, d.expertHidden].all(size, size % self.inner.mesh.tensor == 0))",
        "must divide heads, kvHeads, hidden and expertHidden of model.dimensions",
        "inner.mesh.tensor",
    ),
    rule(
        "!has(self.model.dimensions) || self.inner.mesh.expert == 1 || [self.model.dimensions].all(d, "
        "d.experts > 0 && d.experts % self.inner.mesh.expert == 0)",
        "must divide experts of model.dimensions, and be 1 without experts",
        "inner.mesh.expert",
    ),
    *(
        rule(
            "!has(self.model.dimensions) || [self.model.dimensions].all(d, "
            "self.FIELD <= d.layers * (d.experts > 0 ? 13 : 9) + (d.tied ? 2 : 3))",
            "must be at most the pieces of the model: 9 for each layer of model.dimensions (13 with experts) and 2 "
            "more (3 if not tied)",
            field,
        )
        for field in CUT
    ),
    # What cannot be changed.
    rule(
        "self.target == oldSelf.target || self.inner.schedule == 'Constant'",
        "cannot be changed with inner.schedule Cosine, because the learning rate of every unit follows it; "
        + NEW_RUN,
        "target",
    ),
    rule(
        "self.checkpoint.uri == oldSelf.checkpoint.uri",
        f"cannot be changed: the checkpoints of the run are there; {NEW_RUN}",
        "checkpoint.uri",
    ),
    immutable_field("serviceAccountName", f"it is the identity of the run for the bucket; {NEW_RUN}"),
)
"""Rules of `spec`."""
NAME_RULES = (
    NAMED,
    rule(
        "self.spec.pools.all(p, self.metadata.name.size() + p.name.size() <= NAMES_LIMIT)",
        "metadata.name must have at most NAMES_LIMIT characters together with the name of each pool: host names "
        "<run>-<pool>-<index>-<incarnation>-<host> have at most 63",
    ),
    rule(
        "!has(self.spec.evaluation) || self.metadata.name.size() <= EVALUATED_LIMIT",
        "metadata.name must have at most EVALUATED_LIMIT characters with spec.evaluation: a label of its pod, "
        "<run>-evaluator-<10 characters>, has at most 63",
    ),
    rule(
        "self.spec.syncer.shards == oldSelf.spec.syncer.shards || (self.spec.suspend && oldSelf.spec.suspend && "
        "has(self.status) && has(self.status.conditions) && self.status.conditions.exists(c, "
        "c.type == 'Suspended' && c.status == 'True' && c.reason != 'NotSaved'))",
        "can be changed only while spec.suspend is true and the condition Suspended is True with another reason than "
        "NotSaved: the new shards start from the checkpoint of the last step",
        "spec.syncer.shards",
    ),
)
"""Rules of the whole object."""
