"""Addresses of a machine: reserved before its VM is created, released after the VM.

A machine may use several sources. Each one reserves in a step of its own, and reports an
`AddressState` once the VM exists.

| Source | Module |
|---|---|
| IPAM providers, by IPAddressClaims | `ipamplan` decides which claims, `ipamclaims` creates them |
| an IPPool on Harvester, for the first NIC | `pool` |
| IPPools on Harvester, for single interfaces | `interfaces` |

`entries` finds and releases what IPPools hold for either. `state` sums up all sources in one
condition. Which free address a pool gives is decided in `reconciler.harvester.addressplan`.
"""
