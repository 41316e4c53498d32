"""Why a cluster is not Available, as rules over what the hub has on record of it: step by step, and at each what to do."""

from hub.api.clusterdiagnoses.facts import ClusterFacts, DiagnosisFinding, FindingState, Lead, Offer
from hub.api.clusterdiagnoses.walk import Diagnosis, diagnose

__all__ = ["ClusterFacts", "Diagnosis", "DiagnosisFinding", "FindingState", "Lead", "Offer", "diagnose"]
